"""Reading Kineto traces into signatures, on traces written here."""

import gzip
import json

import pytest

from phantora_ns.kernels import signature
from phantora_ns.kernels.evaluation import estimator_errors, trace_launches, trace_signatures
from phantora_ns.protocol import SignatureKind


def operator(identity, name, **arguments):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": 0,
        "dur": 1,
        "args": {"External id": identity, **arguments},
    }


def kernel(identity, name, ts, dur, stream=7, grid=(1, 1, 1)):
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": {
            "External id": identity,
            "stream": stream,
            "grid": list(grid),
            "block": [128, 1, 1],
            "shared memory": 0,
        },
    }


def write(path, *events):
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": list(events)}, file)
    return path


def test_a_product_becomes_the_call_that_cublas_sees(tmp_path):
    path = write(
        tmp_path / "t.json.gz",
        operator(
            1,
            "aten::mm",
            **{
                "Input Dims": [[8, 32], [32, 16]],
                "Input Strides": [[32, 1], [1, 32]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            },
        ),
        kernel(1, "nvjet", 10, 3),
        kernel(1, "splitk_reduce", 14, 2),
    )
    (found,) = trace_launches.launches(path)
    assert found.kind == SignatureKind.GEMM
    assert signature.Gemm(*found.fields) == signature.Gemm(
        0, 1, 0, 16, 8, 32, 1, 14, 14, 14, 14, 68, 1, 32, 32, 16
    )
    assert found.duration_ns == 5000


def test_overlap_with_other_streams_is_measured(tmp_path):
    path = write(
        tmp_path / "t.json.gz",
        kernel(1, "a", 0, 10),
        kernel(2, "ncclDevKernel_AllReduce", 5, 20, stream=9),
        kernel(3, "b", 10, 10),
        kernel(4, "c", 30, 10),
    )
    found = {o.fields[0]: o.overlapped for o in trace_launches.launches(path)}
    assert found == {"a": 0.5, "b": 1.0, "c": 0.0}
    assert {c.fields[0] for c in estimator_errors.cases(trace_launches.launches(path))} == {"c"}


def test_model_sizes_name_the_products_of_a_trace_without_shapes(tmp_path):
    llama = trace_signatures.LlamaShapes(64, 16, 256, 1000, 2, 128, 4)
    products = llama.products()
    assert len(products) == (2 * 7 + 1) * 3
    assert sum(m * n * k for _, _, m, n, k in products) == 3 * 128 * (
        2 * (2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 256) + 1000 * 64
    )
    events = [operator(i, "aten::mm") for i in range(3)] + [
        kernel(i, "nvjet", 10 * i, 5) for i in range(3)
    ]
    path = write(tmp_path / "t.json.gz", *events)
    assert trace_launches.launches(path) == []
    assert [tuple(o.fields[3:6]) for o in trace_launches.launches(path, llama)] == [
        (64, 128, 64),
        (16, 128, 64),
        (16, 128, 64),
    ]


def test_copies_and_sets(tmp_path):
    def memory(name, cat):
        arguments = {"bytes": 64, "stream": 1, "External id": 1}
        return {"ph": "X", "cat": cat, "name": name, "ts": 0, "dur": 1, "args": arguments}

    path = write(
        tmp_path / "t.json.gz",
        memory("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
        memory("Memset (Device)", "gpu_memset"),
    )
    assert [(o.kind, o.fields) for o in trace_launches.launches(path)] == [
        (3, [0, 64, 1, 2]),
        (3, [1, 64, 2, 2]),
    ]


def test_report_tells_families_and_sides_apart(tmp_path, capsys):
    path = write(
        tmp_path / "t.json.gz",
        *(kernel(i, f"unknown{i}", 10 * i, 5, grid=(i + 1, 1, 1)) for i in range(20)),
    )
    assert estimator_errors.main([str(path), "--worst", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[2]) for line in lines if line.startswith("guess")) == 20
    assert any("held-out" in line for line in lines) and any(
        "calibration" in line for line in lines
    )


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"traceEvents": 5}', b"\x1f\x8b\x08garbage"]
)
def test_what_is_no_trace_is_one_clear_error(tmp_path, capsys, content):
    for name in ("t.json", "t.json.gz", "t.json.xz"):
        path = tmp_path / name
        path.write_bytes(content)
        assert estimator_errors.main([str(path)]) == 1
        assert str(path) in capsys.readouterr().err
