"""Kernel times that simulated ranks wait for while a leader may measure them, and what happens when
it cannot.

The leader here is a client that says it is one; the other ranks are clients of the same process, so
that a client which has asked for nothing counts as idle once this process sleeps, unless it looks
busy.
"""

import fcntl
import multiprocessing
import os
import signal
import struct

import msgpack
import pytest
from client import ALL_REDUCE, FP32, HOST, MEASURED, SUM, Client, form
from running import start_hub

from phantora_ns.hub.recorder import FILE, Recorder
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.signature import decode, encode, key_of
from phantora_ns.protocol import KERNEL_TABLE_HEADER, KERNEL_TABLE_SLOT, SignatureKind

SIZE = 1 << 20
EXACT = 0
GEMM = int(SignatureKind.GEMM)


def kernel(name: str) -> list:
    return [name, 128, 1, 1, 256, 1, 1, 0, 0, 0, 0, b""]


def key(name: str) -> int:
    return key_of(encode(0, kernel(name)))


def ask(client: Client, name: str) -> int:
    return client.start_lookup(key(name), 0, [*kernel(name), None, b""])


def answer(client: Client, request: int) -> tuple[int, int]:
    """(duration, source) of a LOOKUP's answer."""
    _, _, duration_ns, source, *_ = client.wait(request)
    return duration_ns, source


def held(client: Client, request: int, through: Client) -> bool:
    """Whether the hub has not answered, judged after a round trip of `through`, which looks busy
    from then on."""
    through.query([0, 0, 0], [])
    through.look_busy()
    while client.socket.poll(0):
        reply = msgpack.unpackb(client.socket.recv())
        client.replies[reply[1]] = reply
    return request not in client.replies


@pytest.fixture
def hub(short_dir):
    """A hub whose rank 0 is to lead, with the real kernel times and no database."""
    running = start_hub(
        short_dir / "run",
        main=("-m", "phantora_ns.hub"),
        leader=0,
        recording={"gpu": "h200", "rank": "0"},
    )
    yield running
    running.close()


def job(hub, count: int) -> list[Client]:
    return [Client(hub.run_dir, rank, 0, world=count, leader=rank == 0) for rank in range(count)]


def table_entry(hub, name: str) -> tuple[int, int, int]:
    """(duration, source, generation) as a rank reads the kernel table."""
    data = (hub.run_dir / "kernels.tbl").read_bytes()
    _, _, capacity, _, generation = struct.unpack_from("<5Q", data)
    index = key(name) & (capacity - 1)
    while True:
        found, duration, source, _ = struct.unpack_from(
            "<QQII", data, KERNEL_TABLE_HEADER.size + index * KERNEL_TABLE_SLOT.size
        )
        if found == key(name):
            return duration, source, generation
        assert found, f"{name} is not in the table"
        index = (index + 1) % capacity


def test_a_rank_waits_for_the_leaders_measurement(hub):
    leader, rank = job(hub, 2)
    leader.look_busy()
    request = ask(rank, "gelu")
    assert held(rank, request, leader)
    leader.measured([0, kernel("gelu"), ["aten::gelu", 4096, 0, [[8, 128]]], [4321]])
    assert answer(rank, request) == (4321, EXACT)
    assert table_entry(hub, "gelu")[:2] == (4321, EXACT)
    leading = hub.stop()["leading"]
    assert (
        leading["leader"],
        leading["led"],
        leading["awaited"],
        leading["estimated_after_waiting"],
    ) == (0, [0], 1, {})
    assert (leading["unmeasured_ranks"], leading["samples"]) == ([], 1)
    with Database.open(hub.run_dir / "recording.sqlite") as database:
        assert database.exact(encode(0, kernel("gelu"))) == 4321


def test_nobody_waits_for_a_leader_that_only_records_its_host(hub):
    rank = Client(hub.run_dir, 1, 0, world=2)
    rank.look_busy()
    early = ask(rank, "gelu")  # before it has come: it might have measured
    leader = Client(hub.run_dir, 0, 0, world=2, leader=True, measures=0)
    leader.look_busy()
    assert answer(rank, early)[1] != EXACT
    assert answer(rank, ask(rank, "tanh"))[1] != EXACT
    assert leader.lookup(key("relu"), 0, [*kernel("relu"), None, b""])[3] != EXACT
    leader.host_costs(
        {
            "score": 1e6,
            "calls": [["launch", 10, 3000, 2900]],
            "sites": [[1, 0, "launch", 10, 500, 400]],
        }
    )
    rank.query([0, 0, 0], [])
    leading = hub.stop()["leading"]
    assert (leading["led"], leading["awaited"], leading["samples"], leading["host_recorded"]) == (
        [0],
        1,
        0,
        True,
    )
    with Database.open(hub.run_dir / "recording.sqlite") as database:
        assert database.host_calls()["launch"].mean_ns == 3000


def test_what_a_leader_does_not_tell_of_its_host_others_may(hub):
    leader, rank = job(hub, 2)
    rank.host_costs({"score": 2e6, "sites": [[1, 0, "launch", 10, 500, 400]]})
    rank.query([0, 0, 0], [])
    leader.host_costs({"score": 1e6, "latency": [5, 4000, 4000], "gap": [5, 1000, 1000]})
    leader.query([0, 0, 0], [])
    assert hub.stop()["leading"]["host_recorded"] is False
    with Database.open(hub.run_dir / "recording.sqlite") as database:
        assert (
            database.host_numbers().score == 1e6
            and database.host_numbers().times["latency"].mean_ns == 4000
        )
        assert [site.mean_ns for site in database.call_sites()] == [500]


def test_later_samples_replace_the_first_and_are_announced(hub):
    leader, rank = job(hub, 2)
    leader.measured([0, kernel("gelu"), None, [9000]])
    leader.look_busy()
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[2] == 9000
    assert answer(rank, ask(rank, "gelu")) == (9000, EXACT)
    before = table_entry(hub, "gelu")[2]
    leader.measured([0, kernel("gelu"), None, [4100, 4000, 4200]])
    # two clients' messages have no order
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[2] == 4100
    assert answer(rank, ask(rank, "gelu")) == (4100, EXACT)
    assert table_entry(hub, "gelu") == (4100, EXACT, before + 1)


def test_what_was_estimated_is_put_right_when_it_is_measured(hub):
    leader, rank = job(hub, 2)
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[3] != EXACT
    leader.measured([0, kernel("gelu"), None, [4321]])
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[2] == 4321
    assert answer(rank, ask(rank, "gelu")) == (4321, EXACT)
    assert table_entry(hub, "gelu") == (4321, EXACT, 1)
    assert hub.stop()["leading"]["unmeasured_signatures"] == 0


def test_nobody_waits_for_what_the_leader_could_not_measure(hub):
    leader, first, second = job(hub, 3)
    leader.look_busy()
    waiting, other = ask(first, "gelu"), ask(first, "tanh")
    leader.look_busy()
    # after trying, as a leader does
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[3] != EXACT
    leader.look_busy()
    assert answer(first, waiting)[1] != EXACT
    assert answer(second, ask(second, "gelu"))[1] != EXACT
    leader.measured([0, kernel("tanh"), None, []])  # the other way to say it
    assert answer(first, other)[1] != EXACT
    leading = hub.stop()["leading"]
    assert leading["estimated_after_waiting"] == {"1": 2} and leading["unmeasured_ranks"] == [
        0,
        1,
        2,
    ]
    assert leading["unmeasured_signatures"] == 2


@pytest.mark.parametrize("how", ["bye", "close"])
def test_a_leader_that_leaves_lets_the_others_go(hub, how):
    leader, rank = job(hub, 2)
    leader.look_busy()
    request = ask(rank, "gelu")
    assert held(rank, request, leader)
    getattr(leader, how)()
    assert answer(rank, request)[1] != EXACT
    assert answer(rank, ask(rank, "tanh"))[1] != EXACT  # and later ones do not wait at all
    leading = hub.stop()["leading"]
    assert (leading["awaited"], leading["estimated_after_waiting"]) == (1, {"1": 1})


def test_a_leader_that_waits_for_the_asking_rank_cannot_measure(hub):
    """Rank 0 waits for the end of an all-reduce that rank 1 reaches only after a kernel of its
    own."""
    leader, rank = clients = job(hub, 2)
    comm = form(clients)
    leader.all_reduce(comm, SIZE)
    sync = leader.start_sync()
    assert answer(rank, ask(rank, "gelu"))[1] != EXACT
    rank.compute(7000)
    rank.all_reduce(comm, SIZE)
    assert leader.finish_sync(*sync) == rank.sync() > 7000
    leading = hub.stop()["leading"]
    assert leading["estimated_after_waiting"] == {"1": 1}


def test_only_the_rank_that_holds_the_others_up_gets_an_estimate(hub):
    """Ranks 1 and 2 wait for different kernels; the leader needs rank 1 only, and then measures
    what rank 2 waits for."""
    leader, first, second = clients = job(hub, 3)
    comm = form(clients[:2])
    leader.all_reduce(comm, SIZE)
    second.advance(50)
    sync, behind, ahead = leader.start_sync(), ask(first, "gelu"), ask(second, "tanh")
    assert answer(first, behind)[1] != EXACT
    first.all_reduce(comm, SIZE)
    leader.finish_sync(*sync)
    leader.measured([0, kernel("tanh"), None, [1234]])
    assert answer(second, ahead) == (1234, EXACT)
    assert hub.stop()["leading"]["estimated_after_waiting"] == {"1": 1}


def test_a_rank_that_still_runs_may_free_the_leader(hub):
    """The leader waits for rank 2, which works: nothing is estimated for rank 1 until rank 2 has
    come."""
    leader, waiting, working = job(hub, 3)
    comm = form([leader, working])
    leader.all_reduce(comm, SIZE)
    working.look_busy()
    sync, request = leader.start_sync(), ask(waiting, "gelu")
    assert held(waiting, request, working)
    assert not waiting.socket.poll(100)  # nor later, by itself
    working.all_reduce(comm, SIZE)
    other = working.start_sync()
    leader.finish_sync(*sync)
    leader.measured([0, kernel("gelu"), None, [777]])
    assert answer(waiting, request) == (777, EXACT)
    working.finish_sync(*other)
    assert hub.stop()["leading"]["estimated_after_waiting"] == {}


def test_an_answer_that_only_a_held_rank_keeps_back_is_told_to_the_leader(hub):
    """Both have all-reduced; rank 1 goes on first and asks, at a clock before the time that the
    leader waits for. The leader is told that time, measures, and nothing has to be estimated or
    moved."""
    leader, rank = clients = job(hub, 2)
    comm = form(clients)
    leader.compute(50_000)
    request = ask(rank, "gelu")  # at its clock, which is before the leader's kernel has ended
    end = leader.sync()
    assert end >= 50_000 > rank.clock
    leader.measured([0, kernel("gelu"), None, [31]])
    assert answer(rank, request) == (31, EXACT)
    for client in clients:
        client.all_reduce(comm, SIZE)
    sync = leader.start_sync()
    assert rank.sync() == leader.finish_sync(*sync) > end
    result = hub.stop()
    assert result["leading"]["estimated_after_waiting"] == {} and (
        result["revised"],
        result["late"],
    ) == (0, 0)


def test_what_a_held_rank_does_later_counts_in_the_past_of_what_was_answer(hub):
    """The leader is told the end of an all-reduce; a rank that was held then starts a flow before
    it, over the same link: all is timed anew, and the told time that moved is counted."""
    clients = job(hub, 4)
    leader = clients[0]
    first, second = form(clients[:2], b"a" * 128), form(clients[2:], b"b" * 128)
    alone = _all_reduce_alone(clients[:2], first)
    for client in clients[:2]:
        client.all_reduce(first, 64 * SIZE)
    request = ask(clients[2], "gelu")
    sync, other = leader.start_sync(), clients[1].start_sync()
    end = leader.finish_sync(*sync)
    assert end > alone
    leader.measured([0, kernel("gelu"), None, [5]])
    assert answer(clients[2], request) == (5, EXACT)
    for client in clients[2:]:
        client.all_reduce(second, SIZE)
    assert clients[2].clock < end
    rest = [client.start_sync() for client in clients[2:]]
    times = [client.finish_sync(*sync) for client, sync in zip(clients[2:], rest)]
    assert times[0] == times[1] < end  # history back to the held rank's clock was kept
    clients[1].finish_sync(*other)
    assert hub.stop()["late"] == 0


def test_ranks_that_have_not_come_may_free_the_leader(hub):
    """The leader waits for rank 2, which still imports torch: nothing is estimated for rank 1
    because of that."""
    leader, waiting = (Client(hub.run_dir, rank, 0, world=3, leader=rank == 0) for rank in range(2))
    start = leader.start_init(b"u", 2, 0)
    request = ask(waiting, "gelu")
    assert not waiting.socket.poll(1000)
    late = Client(hub.run_dir, 2, 0, world=3)
    late.finish_init(*late.start_init(b"u", 2, 1, device=2))
    leader.finish_init(*start)
    leader.measured([0, kernel("gelu"), None, [99]])
    assert answer(waiting, request) == (99, EXACT)


def test_a_leader_whose_gpu_waits_for_values_of_others_is_stuck(hub):
    """It spins on its GPU, which waits for what the other rank puts into a collective after the
    kernel that it asks about."""
    leader, rank = clients = job(hub, 2)
    comm = form(clients)
    node = leader.ops(comm, [ALL_REDUCE, 4, FP32, SUM, -1, b"\0\0\x80?", 1])
    fetch = leader.start_fetch(node)
    leader.look_busy()
    assert answer(rank, ask(rank, "gelu"))[1] != EXACT
    rank.ops(comm, [ALL_REDUCE, 4, FP32, SUM, -1, b"\0\0\x80?", 0])
    assert leader.wait(fetch)[2] == b"\0\0\0@"


def _all_reduce_alone(clients, comm) -> int:
    for client in clients:
        client.all_reduce(comm, SIZE)
    syncs = [client.start_sync() for client in clients]
    return [client.finish_sync(*sync) for client, sync in zip(clients, syncs)][0]


def _hold_lock(path, pipe) -> None:
    """A process that is to lead and has not touched CUDA: asleep, or at work."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1)
    pipe.send("locked")
    while not pipe.poll(0):
        sum(range(10_000))
    pipe.recv()
    pipe.send("asleep")
    pipe.recv()


@pytest.fixture
def coming(hub):
    """The leader's process before its HELLO, at work until it is sent a message."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold_lock, args=(hub.run_dir / "leader.lock", theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "locked"
    yield process, ours
    ours.close()
    process.kill()
    process.join()


def test_a_leader_that_is_still_coming_is_waited_for_while_it_works(hub, coming):
    process, pipe = coming
    rank = Client(hub.run_dir, 1, 0, world=2)
    request = ask(rank, "gelu")
    assert not rank.socket.poll(1000)  # twice what a sleeping one is waited for
    pipe.send("sleep")
    assert pipe.recv() == "asleep"
    assert answer(rank, request)[1] != EXACT  # it may be waiting for us, in a store


def test_a_leader_that_dies_before_it_came_is_not_waited_for(hub, coming):
    process, _ = coming
    rank = Client(hub.run_dir, 1, 0, world=2)
    request = ask(rank, "gelu")
    assert held(rank, request, rank)  # the hub has seen the leader's lock
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert answer(rank, request)[1] != EXACT
    assert answer(rank, ask(rank, "tanh"))[1] != EXACT


def test_what_a_hot_leader_measured_is_put_right_once_its_clock_is_known(short_dir):
    """A product that nobody has recorded, then products of a recorded run, all a tenth slower."""
    shipped = databases.shipped_path("h200")
    with Database.open(shipped) as database:
        run = next(run for run in database.runs() if run.configuration == "13b-fsdp-2k-mbs4-ac")
        products = [decode(data)[1] for data in run.samples if decode(data)[0] == GEMM]
    own = [*products[0][:3], 12345, *products[0][4:]]
    running = start_hub(
        short_dir / "run", main=("-m", "phantora_ns.hub"), leader=0, databases=[str(shipped)]
    )
    try:
        leader, rank = job(running, 2)
        leader.measured([GEMM, own, None, [3_000_000]])
        request = rank.start_lookup(key_of(encode(GEMM, own)), GEMM, own)
        assert answer(rank, request) == (3_000_000, EXACT)
        for fields in products:
            known = leader.lookup(key_of(encode(GEMM, fields)), GEMM, fields)[2]
            leader.measured([GEMM, fields, None, [round(known * 1.1)]])
        leader.lookup(key_of(encode(GEMM, products[0])), GEMM, products[0])
        again = rank.lookup(key_of(encode(GEMM, own)), GEMM, own)
        assert again[2] == pytest.approx(3_000_000 / 1.1, rel=0.006) and again[3] == EXACT
    finally:
        running.close()


def test_without_a_leader_nobody_waits(short_dir):
    running = start_hub(short_dir / "run", main=("-m", "phantora_ns.hub"))
    try:
        rank = Client(running.run_dir, 1, 0, world=2)
        assert answer(rank, ask(rank, "gelu"))[1] != EXACT
        assert running.stop()["leading"] is None
    finally:
        running.close()


def test_only_leaders_measure_and_only_times(hub):
    leader, rank = job(hub, 2)
    rank.measured([0, kernel("gelu"), None, [1]])
    for wrong in (
        [0, kernel("gelu"), None],
        [0, "gelu", None, [1]],
        [0, kernel("gelu"), 3, [1]],
        [0, kernel("gelu"), None, [0]],
        [0, kernel("gelu"), None, [1.5]],
        [0, kernel("gelu"), None, [-5]],
        ["0", kernel("gelu"), None, [1]],
    ):
        leader.measured(wrong)
    leader.send(MEASURED, 0, {})
    leader.send(HOST, 0, [])
    for client in (leader, rank):  # what was sent before has been handled after this
        client.query([0, 0, 0], [])
    result = hub.stop()
    assert result["bad_messages"] == 10 and result["internal_errors"] == 0
    assert not (hub.run_dir / "recording.sqlite").exists()


def test_what_has_come_survives_the_hubs_death(hub):
    leader, rank = job(hub, 2)
    leader.measured(*[[0, kernel(f"k{i}"), None, [100 + i] * 10] for i in range(100)])
    assert answer(rank, ask(rank, "k99")) == (199, EXACT)
    os.kill(hub.process.pid, signal.SIGKILL)
    hub.process.wait()
    with Database.open(hub.run_dir / "recording.sqlite") as database:
        found = [database.exact(encode(0, kernel(f"k{i}"))) for i in range(100)]
    # a commit every 500 samples; later ones may have waited for their second
    assert found[:50] == list(range(100, 150))


def test_a_recording_that_cannot_be_written_costs_the_recording_only(hub):
    (hub.run_dir / "recording.sqlite").write_text("in the way")
    leader, rank = job(hub, 2)
    leader.measured([0, kernel("gelu"), None, [4321]])
    assert leader.lookup(key("gelu"), 0, [*kernel("gelu"), None, b""])[2] == 4321
    assert answer(rank, ask(rank, "gelu")) == (4321, EXACT)
    assert "exists already" in hub.stop()["leading"]["problem"]


def test_a_leaders_word_about_its_host_counts_more(tmp_path):
    none = [0, 0, 0]
    costs = [
        {
            "score": 1000.0,
            "calls": [["launch", 5, 2000.0 + n, 1900.0]],
            "sites": [],
            "latency": none,
            "gap": none,
        }
        for n in range(4)
    ]
    recorder = Recorder(tmp_path / FILE, {"gpu": "h200"})
    recorder.host(costs[1], leads=False)
    recorder.host(costs[2], leads=True)
    recorder.host(costs[3], leads=False)
    recorder.close()
    assert recorder.problem is None
    with Database.open(tmp_path / FILE) as database:
        assert [run.host.message()["calls"][0][2] for run in database.runs()] == [2002.0]
