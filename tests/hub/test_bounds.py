"""Why it exists: no client may stop the hub for the others, or take more than its share of memory."""

import os
import sqlite3

import msgpack
import pytest
import zmq
from client import Client
from inprocess import GPU, Bench

from phantora_ns.hub import communicators
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.recording import Recording
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import MESSAGE_MAX_BYTES, VERSION

NCCL = 22809


@pytest.fixture
def bench(short_dir):
    made = Bench(short_dir)
    yield made
    made.close()


def test_a_page_that_is_a_fifo_is_refused(bench):
    os.mkfifo(bench.folder / "ranks" / "pipe")
    bench.hub.handle(b"a", msgpack.packb([1, 1, VERSION, {"shm": "pipe"}]))
    ((_, reply),) = bench.outbox
    assert reply[1] == -1 and "pipe" in reply[2]["error"]


def test_a_message_beyond_the_limit_never_reaches_the_hub(hub):
    """libzmq closes the connection as soon as it has read the size, which the protocol (ZMTP 3.1)
    sends first."""
    big = zmq.Context.instance().socket(zmq.DEALER)
    big.setsockopt(zmq.LINGER, 0)
    big.connect(f"ipc://{hub.run_dir.resolve()}/hub.sock")
    watch = big.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    big.send(bytes(MESSAGE_MAX_BYTES + 1))
    assert watch.poll(20_000)
    big.disable_monitor()
    watch.close()
    big.close()
    Client(hub.run_dir)  # is welcomed, so the hub goes on; its HELLO is the only message
    assert hub.stop()["messages"] == 1


def test_values_of_operations_that_never_complete_are_bounded(bench, monkeypatch):
    monkeypatch.setattr(communicators, "MAX_UNFINISHED_BYTES", 1000)
    for rank in range(2):
        who = b"%d" % rank
        bench.hello(who, rank)
        init = [5, 2, 1, 0, {}, 1, [0, 0, 0], b"u", 2, rank, rank, NCCL]
        bench.hub.handle(who, msgpack.packb(init))
    bench.hub.settle()

    def all_gathers(who, payload):
        for number in range(2, 22):
            op = [1, 100, 1, -1, -1, payload, 1]
            ops = [8, number + 1, 0, {}, 0, number, [0, 0, 0], [op]]
            bench.hub.handle(who, msgpack.packb(ops))

    def fetch(number):
        del bench.outbox[:]
        bench.hub.handle(b"0", msgpack.packb([9, number + 21, number, 0, number, 0]))
        ((_, reply),) = bench.outbox
        return reply[2:]

    all_gathers(b"0", b"x" * 100)
    assert bench.hub.communicators._unfinished_bytes == 1000
    all_gathers(b"1", b"y" * 100)
    assert bench.hub.communicators._unfinished_bytes == 0
    assert fetch(2) == [b"x" * 100 + b"y" * 100, 0]
    assert fetch(21) == [b"", 1] and bench.hub.communicators.expired == 1


def test_a_database_that_breaks_during_the_run_is_named(bench, tmp_path):
    path = tmp_path / "mine.sqlite"
    with Recording(path, {"gpu": GPU.model}) as recording:
        recording.add(1, [1, 2], None, [1000])
    models = KernelModels(KernelTimes(GPU, [Database.open(path)]), lambda *_: 0, lambda *_: 1)
    bench.hub.lookups.models = models
    bench.hello(b"a", 0)
    with sqlite3.connect(path) as damage:
        damage.execute("DROP TABLE samples")
    bench.hub.handle(b"a", msgpack.packb([10, 2, 1, 0, 7, 1, [1, 2]]))
    _, reply = bench.outbox[-1]
    assert reply[0] == 0 and str(path) in reply[2] and bench.hub.diagnostics.internal_errors == 0
    assert bench.hub.diagnostics.errors == [reply[2]]


def test_a_long_text_is_cut(bench):
    bench.hello(b"a", 0)
    bench.hub.handle(b"a", msgpack.packb([11, 2, 0, "warning", "x" * 10**6]))
    bench.hub.handle(b"a", msgpack.packb([11, 3, 0, "y" * 10**6, "x"]))
    (kept,) = bench.hub.diagnostics.of("warning")
    assert len(kept) == 4096
    assert len(bench.hub.clients.get(b"a").complaint) == 500
