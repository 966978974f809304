"""Why it exists: one hub serves all ranks, so its cost for a message bounds how large a cluster can
be simulated."""

import itertools
import json
import struct

import msgpack
import pytest

from phantora_ns.report.run_report import build_report
from tests.hub.inprocess import Bench, hub_json

SYNC, COMM_INIT, OPS = 2, 5, 8
ALL_REDUCE, FP32, SUM = 0, 7, 0
PAIRS = 100
RANKS = 64


class Job:
    """Two ranks that reduce and synchronise, again and again."""

    def __init__(self, folder) -> None:
        self.bench = Bench(folder)
        self.numbers = itertools.count(2)
        for rank in range(2):
            self.bench.hello(b"%d" % rank, rank)
        for rank in range(2):
            self.send(rank, COMM_INIT, 1, 0, {}, 1, [0, 0, 0], b"u", 2, rank, rank, 22809)
        self.anchor = 1

    def send(self, rank: int, kind: int, *body) -> None:
        message = msgpack.packb([kind, self.sequence(rank), *body])
        self.bench.hub.handle(b"%d" % rank, message)

    def sequence(self, rank: int) -> int:
        if rank == 0:
            self.number = next(self.numbers)
        return self.number

    def step(self) -> None:
        """Four messages: an all-reduce of 4 MB and a synchronisation by each rank."""
        communication, anchor = self.anchor + 1, self.anchor + 2
        operation = [ALL_REDUCE, 4 << 20, FP32, SUM, -1, None, 0]
        for rank in range(2):
            head = [self.anchor, 300_000, 0]
            self.send(rank, OPS, 0, {"keep": self.anchor}, 0, communication, head, [operation])
        for rank in range(2):
            head = [communication, 1_000 + rank, 0]
            self.send(rank, SYNC, anchor, 0, {}, anchor, head)
        self.bench.hub.settle()
        self.bench.outbox.clear()
        self.anchor = anchor


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    made.bench.close()


def test_messages(benchmark, job):
    """400 messages: parsed, handled, and the times that follow from them settled."""

    def steps():
        for _ in range(PAIRS):
            job.step()

    benchmark.extra_info["messages"] = 4 * PAIRS
    benchmark.pedantic(steps, warmup_rounds=1, rounds=20)
    diagnostics = job.bench.hub.diagnostics
    assert diagnostics.bad_messages == 0 and diagnostics.internal_errors == 0


@pytest.fixture
def finished(tmp_path):
    """The run directory of 64 ranks that have ended."""
    (tmp_path / "ranks").mkdir()
    run = {"cluster": "h200-rail", "nodes": RANKS // 8, "gpus_per_node": 8}
    (tmp_path / "run.json").write_text(json.dumps(run))
    clients = []
    for rank in range(RANKS):
        statistics = struct.pack("<32Q", 0x50484E5352414E4B, 1, 10**9 + rank, *[5] * 29)
        (tmp_path / "ranks" / f"rank{rank}").write_bytes(statistics + bytes(3840))
        counts = {"comm_ns": 50, "comm_wait_ns": 10, "exposed_comm_ns": 20, "messages": 5}
        place = {"client": rank, "rank": rank, "node": rank // 8, "device": rank % 8}
        clients.append({**place, "shm": f"rank{rank}", **counts})
    hub = hub_json(simulated_ns=2 * 10**9, clients=clients)
    (tmp_path / "hub.json").write_text(json.dumps(hub))
    return tmp_path


def test_report(benchmark, finished):
    """The report of a run of 64 ranks."""
    report = benchmark(build_report, finished, exit_code=0, failed_by=None, wall_s=1.0)
    assert len(report["ranks"]) == RANKS
