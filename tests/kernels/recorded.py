"""Databases for tests, made as a leader's hub makes them."""

import random
from pathlib import Path

from phantora_ns.kernels.database.recording import Recording

HOST = {
    "score": 1_000_000,
    "calls": [["launch", 10, 3000.5, 2900], ["gemm", 4, 9000.0, 8000.0]],
    "sites": [
        [(1 << 64) - 5, 1, "launch aten::mm", 7, 100.0, 90.0],
        [12, 2, "gemm aten::mm", 3, 10.5, 9.0],
    ],
    "latency": [5, 4500.0, 4400.0],
    "gap": [6, 1300.0, 1250.0],
}


def kernel(name="k", identity=b"") -> list:
    """The fields of a kernel launch."""
    return [name, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, identity]


def gemm(m=8) -> list:
    """The fields of a matrix product."""
    return [0, 0, 0, m, 4096, 4096, 1, 14, 14, 14, 14, 68, 1, 4096, 4096, 4096]


GRAPH = [
    [[10, [[1, 0.5], [2, float("inf")], [704, ["t", 9, [8, 3, 32, 32], [3072, 1024, 32, 1]]]]]]
]
CONTEXT = ["aten::mm", 1 << 20, 1 << 10, [[8, 4096], [4096, 4096]]]


def record(path: Path, *entries, uid=None, host=None, gpu="h200", **fields) -> Path:
    """A closed recording of (kind, fields, context, durations[, first]) entries."""
    with Recording(path, {"gpu": gpu, "uid": uid, **fields}) as recording:
        for entry in entries:
            recording.add(*entry)
        if host is not None:
            recording.host(host)
    return path


def varied(path: Path, uid: str, seed: int, **fields) -> Path:
    """A recording with something of every kind; other seeds share some of its signatures and differ
    in times."""
    chance = random.Random(seed)

    def times():
        return [chance.randrange(1000, 2000) for _ in range(chance.randrange(1, 9))]

    names = [f"_Z{i}kernel{i}" for i in range(4)]
    kernels = [
        (
            0,
            kernel(chance.choice(names), bytes([chance.randrange(4)])),
            chance.choice([CONTEXT, None]),
            times(),
            chance.random() < 0.2,
        )
        for _ in range(12)
    ]
    others = [
        (1, gemm(chance.choice([8, 16])), CONTEXT, times()),
        (2, GRAPH, None, times()),
        (3, [0, 4096, 2, 2], None, times()),
        (4, ["cusparseSpMM", [1, 2, -3]], ["aten::mm é", 0, 0, []], times()),
    ]
    host = {
        **HOST,
        "score": chance.randrange(900_000, 1_100_000),
        "calls": [["launch", chance.randrange(1, 99), 3000, 2800]],
    }
    return record(
        path, *kernels, *others, uid=uid, host=host, configuration=f"configuration {seed}", **fields
    )
