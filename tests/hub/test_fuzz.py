"""Why it exists: whatever a client sends, the hub counts it and goes on; never a traceback, never a
wrong turn of the graph. The kernel times, the recording and the communicators are real."""

import json
import random
import tempfile
import tomllib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
import zmq
from client import Client, HubError
from fuzzing import LEADER, RANKS, STRANGER, Fuzzer, about_kernels, opening, write_log
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import GPU, Bench
from running import RunningHub, start_hub

from phantora_ns.hub.decoding import BadMessage, decode, encode
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.hub.result import result
from phantora_ns.kernels.contention import KernelContention
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.kernels.queue_slots import queue_slots_of
from phantora_ns.model.fold import Fold
from phantora_ns.protocol import VERSION
from phantora_ns.sim._vertices import LATEST_NS

NCCL = 22809


@pytest.fixture(scope="module")
def recorded():
    """(the models of a run, recorded signatures by their kind and function, rare ones first)."""
    opened = databases.find(GPU.model, [])
    functions = {}
    for entry in opened[0].signatures():
        name = str(entry.fields[0]).split("<")[0] if isinstance(entry.fields[0], str) else ""
        functions.setdefault((entry.kind, name), []).append(entry)
    models = KernelModels(
        KernelTimes(GPU, opened),
        KernelContention(GPU).permille,
        lambda kind, fields: queue_slots_of(kind, fields, GPU.multiprocessors).packed(),
    )
    return models, sorted(functions.values(), key=len)


@pytest.fixture(scope="module")
def benches(recorded):
    """Makes benches, each in a folder of its own."""
    made = []
    with tempfile.TemporaryDirectory(prefix="ph-") as folder:

        def make(**options) -> Bench:
            (Path(folder) / str(len(made))).mkdir()
            made.append(Bench(Path(folder) / str(len(made)), models=recorded[0], **options))
            return made[-1]

        yield make


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


FOLD = Fold(period=2, block=8, world=8, last=0)
"""Ranks 0 to 3 run, and 2 and 3 stand for two others each. Rank 1 has to agree with rank 3."""


def open_job(bench: Bench) -> list[list[int]]:
    """Four ranks come, and form the two communicators of `opening`. Returns their numbers, by rank."""
    numbers = [[] for _ in range(RANKS)]
    for rank in range(RANKS):
        identity = b"client%d" % rank
        bench.hello(identity, rank, leads=rank == LEADER and bench.hub.recorder is not None)
        write_log(bench.folder / "profile" / f"page{rank}.log")
        for frame in opening(rank, bench.hub.options.nodes * 2):
            bench.hub.handle(identity, frame)
    bench.hub.settle()
    for identity, reply in bench.outbox:
        if reply[0] == 5:
            numbers[int(identity[6:])].append(reply[2])
    assert len(bench.outbox) == 3 * RANKS and bench.hub.diagnostics.bad_messages == 0
    return numbers


def feed(bench: Bench, sent) -> None:
    for who, frame in sent:
        bench.hub.handle(b"client%d" % who, frame)
        bench.hub.settle()


def commit(bench: Bench) -> None:
    bench.hub.releases.commit()
    bench.hub.settle()


@given(seed=st.integers(0, 2**32), length=st.integers(1, 120), fold=st.sampled_from([None, FOLD]))
@settings(max_examples=200, deadline=None)
def test_nothing_that_is_sent_breaks_the_hub(benches, recorded, seed, length, fold):
    """The graph is checked before history is dropped: after that, a client that lies about its clock has
    times that nobody can compute again."""
    bench = benches(fold=fold, records=fold is None)
    pages = [f"page{rank}" for rank in range(RANKS)]
    size = RANKS if fold is None else fold.world
    few = recorded[1][: len(recorded[1]) // 3]
    fuzzer = Fuzzer(random.Random(seed), few, open_job(bench), size, pages)
    feed(bench, (fuzzer.message() for _ in range(length)))
    bench.hub.graph.check()
    commit(bench)
    assert all(encode(reply) for _, reply in bench.outbox)
    assert json.dumps(result(bench.hub))
    assert bench.hub.diagnostics.internal_errors == 0
    bench.close()


def described() -> tuple[dict[int, str], dict[str, str]]:
    """The kinds of messages that a client may send, by number, and the keys of `extra` with the names that
    the hub has for them."""
    path = Path(__file__).parents[2] / "protocol" / "messages.toml"
    protocol = tomllib.loads(path.read_text())
    kinds = {one["number"]: name for name, one in protocol["message"].items() if "fields" in one}
    return kinds, {one["key"]: one["name"] for one in protocol["map"]["extra"]["fields"]}


@pytest.mark.parametrize("size", [RANKS, FOLD.world])
def test_the_fuzzer_sends_all_that_the_protocol_describes(recorded, size):
    """Else a kind or a key that is added later would never come, or a kind with a new field be refused at
    the first look: of each kind, most messages have the right shape, and each key comes with a value."""
    kinds, keys = described()
    fuzzer = Fuzzer(random.Random(1), recorded[1], [[0, 4], [0, 4], [1, 4], [1, 4]], size)
    sent, right, filled = Counter(), Counter(), Counter()
    for _ in range(10_000):
        _, frame = fuzzer.message()
        with suppress(Exception):  # some frames are no message at all
            sent[msgpack.unpackb(frame, strict_map_key=False)[0]] += 1
        try:
            message = decode(frame)
        except BadMessage:
            continue
        right[message.__struct_config__.tag] += 1
        extra = getattr(message, "extra", None)
        filled.update(key for key, name in keys.items() if extra and getattr(extra, name))
    assert not [name for kind, name in kinds.items() if right[kind] * 4 < sent[kind] * 3]
    assert not [name for kind, name in kinds.items() if not right[kind]]
    assert not keys.keys() - filled.keys()
    assert right.keys() <= kinds.keys()


@given(
    sent=st.lists(
        st.tuples(st.integers(0, 3), st.binary(max_size=60) | junk.map(msgpack.packb)), max_size=20
    )
)
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_messages_are_counted(benches, sent):
    bench = benches()
    feed(bench, sent)
    commit(bench)
    assert bench.hub.diagnostics.internal_errors == 0
    assert bench.hub.diagnostics.bad_messages == bench.hub.diagnostics.messages == len(sent)
    bench.close()


@pytest.mark.parametrize(
    "seed,count,share", [(1, 800, 3), pytest.param(2, 100_000, 1, marks=pytest.mark.nightly)]
)
def test_nothing_that_is_said_of_kernels_breaks_the_hub_or_the_recording(
    benches, recorded, seed, count, share
):
    """`share`: one in so many functions, because models are fitted to those that have many
    records."""
    functions = recorded[1][: len(recorded[1]) // share]
    bench, rng = benches(records=True), random.Random(seed)
    hub, seqs = bench.hub, [1, 1]
    for rank in range(2):
        bench.hello(b"client%d" % rank, rank, leads=rank == 1)
    for request in range(1, count):
        kind, body = about_kernels(rng, functions, request)
        who = rng.randrange(2) if kind == 10 else 1
        seqs[who] += 1
        hub.handle(b"client%d" % who, msgpack.packb([kind, seqs[who], *body]))
        hub.settle()
        assert all(encode(reply) for _, reply in hub.answers.take())
    assert hub.diagnostics.messages == count + 1
    assert hub.recorder.problem is None and hub.recorder.samples > count / 20
    bench.close()


def test_a_lookup_of_a_kind_beyond_64_bits_is_a_guess(benches):
    bench = benches()
    bench.hello(b"a", 0)
    for seq, kind, fields in [(2, 2**63, [1]), (3, 0, []), (4, 0, ["x"])]:
        bench.hub.handle(b"a", msgpack.packb([10, seq, seq, 0, 7, kind, fields]))
    assert [reply[0] for _, reply in bench.outbox] == [1, 10, 10, 10]
    bench.close()


def test_times_beyond_36_years_end_the_job_and_not_the_hub(benches):
    """Each message is valid; their sum passes 64 bits."""
    bench = benches()
    for rank in range(2):
        bench.hello(b"client%d" % rank, rank)
    head = [0, 2**56 - 1, 2**56 - 1]
    for number in range(1, 300):
        nodes = {"nodes": [[2 * number - 1, head]]}
        head = [2 * number - 1, 2**56 - 1, 2**56 - 1]
        sync = [2, number + 1, number, 0, nodes, 2 * number, head]
        bench.hub.handle(b"client0", msgpack.packb(sync))
        bench.hub.settle()
        head = [2 * number, 2**56 - 1, 2**56 - 1]
        assert all(encode(reply) for _, reply in bench.outbox)
    assert bench.hub.graph.totals(0).latest_ns == LATEST_NS
    assert [text for text in bench.hub.diagnostics.errors if "36 years" in text]
    assert bench.hub.diagnostics.internal_errors == 0
    bench.hub.graph.check()
    bench.close()


ROUND = 500
"""Messages from the begin of a job to its end. A job that ranks have broken teaches nothing more."""


def memory_kib(pid: int) -> int:
    """What a process has in memory that no file backs."""
    with open(f"/proc/{pid}/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1])


JOB_KIB = 1024
"""What the hub may keep of a job that has ended: totals and marks for the report, and what hangs on them."""


class Rounds:
    """Jobs that come to one hub, one after another, and send what a Fuzzer makes. Nothing is so late that
    the hub's time ends, because the last job has to be served. `sent`, `shaped`: messages by kind (-1: no
    message), and those of the right shape. `answers`: those of the hub by kind (0: an error)."""

    def __init__(self, hub: RunningHub, seed: int, functions, fold: Fold | None) -> None:
        self.hub, self.functions = hub, functions
        self.rng = random.Random(seed)
        self.size = RANKS if fold is None else fold.world
        self.messages = 0
        self.sent, self.shaped, self.answers = Counter(), Counter(), Counter()
        self.jobs = 0

    def clients(self, leads: bool) -> list[Client]:
        """The ranks of a job, and their communicators' numbers."""
        self.jobs += 1
        clients = [
            Client(self.hub.run_dir, rank, rank // 2, leader=leads and rank == LEADER)
            for rank in range(RANKS)
        ]
        for client in clients:
            write_log(self.hub.run_dir / "profile" / f"{client.name}.log")
        self.messages += RANKS
        return clients

    def communicators(self, clients: list[Client]) -> list[list[int]]:
        """Forms those of `opening`."""
        for rank, client in enumerate(clients):
            for frame in opening(rank, self.size, b"%d" % self.jobs):
                client.socket.send(frame)
        self.messages += 2 * RANKS
        return [[client.wait(number)[2] for number in (1, 2)] for client in clients]

    def round(self, count: int) -> None:
        """A job of `count` messages."""
        clients = self.clients(leads=self.size == RANKS)
        numbers = self.communicators(clients)
        stranger = zmq.Context.instance().socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"ipc://{self.hub.run_dir.resolve()}/hub.sock")
        sockets = [*(client.socket for client in clients), stranger]
        pages = [client.name for client in clients]
        uid = b"%d" % self.jobs
        fuzzer = Fuzzer(self.rng, self.functions, numbers, self.size, pages, True, uid)
        for number in range(count):
            who, frame = fuzzer.message()
            self.note(frame)
            sockets[who].send(frame)
            if number % 50 == 0:
                for socket in sockets:
                    self.take(socket)
        last, parts = 2**40, self.rng.random() < 0.5
        for who, socket in enumerate(sockets):
            seq = fuzzer.seqs[who] + 5  # beyond whatever the hub has counted
            socket.send(msgpack.packb([10, seq, last, 0, 7, 3, [0]]))
            while self.take(socket, wait=True) != last:
                pass
            if who == STRANGER or parts or self.rng.random() < 0.5:
                socket.send(msgpack.packb([12, seq + 1, 0]))
                socket.send(msgpack.packb([10, seq + 2, last + 1, 0, 7, 3, [0]]))
                while self.take(socket, wait=True) != last + 1:
                    pass
                self.messages += 2
            else:  # it dies, and the hub has handled all that it sent
                clients[who].set_word(3, seq)
        self.messages += len(sockets)
        for client in clients:
            client.close()
        stranger.close()

    def note(self, frame: bytes) -> None:
        """Counts a message."""
        self.messages += 1
        try:
            kind = decode(frame).__struct_config__.tag
            self.shaped[kind] += 1
        except BadMessage:
            kind = -1
            with suppress(Exception):
                kind = msgpack.unpackb(frame, strict_map_key=False)[0]
        self.sent[kind if type(kind) is int else -1] += 1

    def take(self, socket: zmq.Socket, wait: bool = False) -> int | None:
        """Takes the answers that have come, or waits for one. Returns the request of the last."""
        request = None
        try:
            while True:
                reply = msgpack.unpackb(socket.recv(0 if wait else zmq.NOBLOCK))
                self.answers[reply[0]] += 1
                request = reply[1]
                if wait:
                    return request
        except zmq.Again:
            assert not wait, "the hub does not answer"
            return request

    def serve(self) -> None:
        """A job that makes no mistake is served: its ranks reduce, and wait until that is over."""
        clients = self.clients(leads=False)
        begun = [
            client.start_init(b"served %d %d" % (self.jobs, rank // 2), 2, rank % 2)
            for rank, client in enumerate(clients)
        ]
        numbers = [client.finish_init(*one) for client, one in zip(clients, begun)]
        for client, number in zip(clients, numbers):
            client.advance(5_000)
            client.all_reduce(number, 1 << 20)
        waits = {client.socket: (client, client.start_sync()) for client in clients}
        ends = {}
        while waits:  # whoever is earlier goes first, and the others wait for its end
            ready = zmq.select(list(waits), [], [], timeout=20)[0]
            assert ready, "the hub does not answer"
            client, wait = waits.pop(ready[0])
            ends[client.rank] = client.finish_sync(*wait)
            assert client.lookup(7, 1, [1, 2, 3])[0] == 10
            client.send(12, client.clock)
            with pytest.raises(HubError, match="no HELLO"):  # so BYE has come
                client.lookup(7, 1, [1, 2, 3])
            self.messages += client.seq - 1  # HELLO is counted
        assert ends[0] == ends[1] > 5_000 and ends[2] == ends[3] > 5_000


@pytest.mark.parametrize("fold", [None, FOLD], ids=["whole", "folded"])
@pytest.mark.parametrize(
    "seed,rounds",
    [(1, 4), *(pytest.param(s, 100_000 // ROUND, marks=pytest.mark.nightly) for s in (2, 3))],
)
@pytest.mark.timeout(900)
def test_a_hub_outlives_jobs_that_send_anything(short_dir, recorded, seed, rounds, fold):
    """A hub as the launcher starts it, with the tables of the project. Its memory grows with the jobs that
    come, by a little for each, and not with what they send."""
    options = {"recording": {"gpu": GPU.model}}
    if fold is not None:
        options = {"fold": fold.describe(), "ranks_per_node": 2}
    nodes = 2 if fold is None else fold.world // 2
    said = short_dir / "said"  # a pipe would fill
    under = ("sh", "-c", 'file=$1; shift; exec "$@" 2> "$file"', "sh", str(said))
    main = ("-m", "phantora_ns.hub")
    hub = start_hub(short_dir / "run", main, nodes=nodes, gpus_per_node=2, under=under, **options)
    try:
        jobs, held = Rounds(hub, seed, recorded[1], fold), []
        for _ in range(rounds):
            jobs.round(ROUND)
            held.append(memory_kib(hub.process.pid))
        jobs.serve()
        found = hub.stop()
    finally:
        hub.close()
    print(
        f"seed {seed}, {'folded' if fold else 'whole'}: {found['messages']} messages, "
        f"{found['bad_messages']} invalid, hub {found['hub_cpu_ns'] / 1e9:.1f} s, KiB held {held[0]}, "
        f"{held[len(held) // 2]}, {held[-1]}; by kind (sent, of the right shape): "
        f"{ {kind: (jobs.sent[kind], jobs.shaped[kind]) for kind in sorted(jobs.sent)} }; "
        f"answers {dict(sorted(jobs.answers.items()))}"
    )
    assert "Traceback" not in said.read_text() and found["internal_errors"] == 0
    assert found["messages"] == jobs.messages
    assert found["bad_messages"] < 0.75 * found["messages"]  # most of a refused job's are
    assert rounds < 100 or not described()[0].keys() - jobs.shaped.keys()
    half = len(held) // 2
    assert held[-1] - held[half] < (rounds - half) * JOB_KIB + 8192


def ranks_of(bench: Bench, *sent) -> None:
    """Each of `sent` is a rank and a message without its sequence number."""
    for rank, kind, *fields in sent:
        client = bench.hub.clients.get(b"client%d" % rank)
        bench.hub.handle(client.identity, msgpack.packb([kind, client.seq + 1, *fields]))
        bench.hub.settle()
    assert bench.hub.diagnostics.internal_errors == 0


def launch(vertex: int, comm: int, *op) -> list:
    return [8, 0, {}, comm, vertex, [0, 0, 0], [[*op, None, 0]]]


def test_a_root_that_is_no_member_is_refused(benches):
    """By both members of two."""
    bench = benches()
    (own, _), *_ = open_job(bench)
    ranks_of(bench, *((rank, *launch(3, own, 0, 4, 7, 0, 2)) for rank in (0, 1)))
    bench.hub.graph.check()
    bench.close()


def test_an_operation_that_does_not_exist_is_described(benches):
    """The representative issues it, and the witness that decides does something else."""
    bench = benches(fold=FOLD)
    numbers = open_job(bench)
    ranks_of(bench, (3, *launch(3, numbers[3][0], 10, 4, 99, 0, -1)))
    ranks_of(bench, (1, *launch(3, numbers[1][0], 0, 4, 7, 0, -1)))
    (said,) = bench.hub.diagnostics.errors
    assert "rank 3 calls collective 10(4 bytes, dtype 99), and rank 1 calls all_reduce" in said
    bench.close()


def test_a_rank_may_free_what_it_still_splits(benches):
    """It frees a communicator before the others have come to its split, and the hub forms what they split off."""
    bench = benches(fold=FOLD)
    own = open_job(bench)[2][0]
    split = [6, 3, 0, {}, 3, [0, 0, 0], own, 0, 0]
    bench.hub.answers.take()
    ranks_of(bench, (2, *split), (2, 7, 0, own), (3, *split))
    for rank in (0, 1):  # they wait too, so nobody can act earlier
        ranks_of(bench, (rank, 6, 3, 0, {}, 3, [0, 0, 0], 0, 0, 0))
    assert sorted(reply[0] for _, reply in bench.hub.answers.take()) == [6] * RANKS
    bench.close()


def test_a_process_that_is_no_rank_cannot_meet_one_that_stands_for_others(benches):
    bench = benches(fold=FOLD)
    open_job(bench)
    info = {"rank": -1, "node": 3, "shm": bench.page()}
    bench.hub.handle(b"client4", msgpack.packb([1, 1, VERSION, info]))
    init = [5, 3, 0, {}, 3, [0, 0, 0], b"u", 2]
    ranks_of(bench, (2, *init, 0, 0, NCCL), (4, *init, 1, 1, NCCL))
    (said,) = bench.hub.diagnostics.errors
    assert "ranks 2, -1 holds a process that is no rank of the job" in said
    bench.close()
