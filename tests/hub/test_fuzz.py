"""Why it exists: whatever a client sends, the hub counts it and goes on; never a traceback, never a
wrong turn of the graph. The kernel times, the recording and the communicators are real."""

import itertools
import random
import tempfile
from pathlib import Path

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inprocess import GPU, Bench

from phantora_ns.hub.decoding import encode
from phantora_ns.hub.lookups import KernelModels
from phantora_ns.kernels.contention import KernelContention
from phantora_ns.kernels.database import databases
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.kernels.queue_slots import queue_slots_of
from phantora_ns.protocol import SignatureKind, VERSION
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


class Fuzzer:
    """Random messages of four clients, from small pools of numbers so that they often name
    something that exists."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.made = [1, 1, 1, 1]  # each client's largest node: that of its first COMM_INIT
        self.seqs = [2, 2, 2, 2]
        self.requests = itertools.count(2)

    def pick(self, usual, *odd, share=0.04):
        return self.rng.choice(odd) if odd and self.rng.random() < share else self.rng.choice(usual)

    def junk(self):
        """Any value that msgpack can hold."""
        pick = self.rng.randrange(9)
        simple = [None, True, -1, 2**63, 1.5, "x", b"y", [], {}]
        return (
            [self.junk(), self.junk()]
            if pick == 7
            else {"nodes": self.junk()}
            if pick == 8
            else simple[pick]
        )

    def time(self) -> int:
        return self.pick([0, 1, 5, 100, 3_000, 70_000], 2**55, 2**63, -1, share=0.01)

    def head(self, who: int) -> list:
        entries = [
            (
                self.pick([0, *range(max(0, self.made[who] - 4), self.made[who] + 1)], 99),
                self.time(),
                self.time(),
            )
            for _ in range(self.pick([1, 1, 2], 0))
        ]
        return [x for entry in entries for x in entry]

    def fresh(self, who: int) -> int:
        if self.rng.random() < 0.03:
            return self.rng.choice([0, 1, 2**40, -3, self.made[who]])
        self.made[who] += self.pick([1], 2, 1000)
        return self.made[who]

    def extra(self, who: int) -> dict:
        if self.rng.random() < 0.8:
            return {}
        nodes = [[self.fresh(who), self.head(who)] for _ in range(self.rng.randrange(3))]
        stalls = [
            [self.pick([0, 1], -7), self.head(who), self.head(who)]
            for _ in range(self.rng.randrange(2))
        ]
        return {
            key: self.junk() if self.rng.random() < 0.05 else value
            for key, value in {
                "nodes": nodes,
                "stalls": stalls,
                "keep": max(0, self.made[who] - 6),
            }.items()
            if self.rng.random() < 0.6
        }

    def op(self) -> list:
        count = self.pick([4], 8, 0, 2**55, 1 << 20, share=0.1)
        payload = self.pick([None, bytes(count % 64), bytes(2 * count % 64)], b"", b"123")
        kind = self.pick([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9], -1, 10)
        return [
            kind,
            count,
            self.pick([7], 9, 0, 10, 12, share=0.2),
            self.pick([0], 1, 4, -1),
            self.pick([0, 1], -1, 2),
            payload,
            self.rng.randrange(2),
        ]

    def fields(self, kind: int, who: int) -> list:
        number, time = next(self.requests), self.time()
        comm = self.pick([who // 2], 0, 2, 3)
        if kind == 1:
            return [VERSION, {"shm": self.junk()}]
        if kind == 2:
            return [number, time, self.extra(who), self.fresh(who), self.head(who)]
        if kind == 3:
            return [number, time, self.extra(who), self.head(who), self.head(who)]
        if kind == 4:
            return [number, time, self.extra(who), [self.head(who), self.head(who)]]
        if kind == 5:
            uid, size = self.pick([b"a", b"b"]), self.pick([2], 1, 3, 0)
            return [
                number,
                time,
                self.extra(who),
                self.fresh(who),
                self.head(who),
                uid,
                size,
                who % 2,
                who % 2,
                self.pick([22809], 0, 23007, -1, share=0.01),
            ]
        if kind == 6:
            return [
                number,
                time,
                {},
                self.fresh(who),
                self.head(who),
                comm,
                self.pick([0, -1]),
                self.pick([0, 1]),
            ]
        if kind == 7:
            return [time, comm]
        if kind == 8:
            ops = [self.op() for _ in range(self.pick([1, 1, 2], 0))]
            return [time, self.extra(who), comm, self.fresh(who), self.head(who), ops]
        if kind == 9:
            return [number, time, self.made[who], self.pick([0, 1])]
        if kind == 10:
            return [
                number,
                time,
                self.pick([1, 2, 2**64 - 1], 0),
                self.pick([0, 1, 4]),
                [self.junk()] * self.pick([13, 2]),
            ]
        if kind == 11:
            return [time, self.pick(["unsupported", "guess", "odd"]), "text"]
        return [time]

    def message(self) -> tuple[int, bytes]:
        """(client, frame): mostly well formed; now and then a field, a sequence number or the whole
        frame is junk."""
        who = self.pick([0, 1], 2, 3, share=0.2)
        if self.rng.random() < 0.02:
            return who, self.rng.randbytes(self.rng.randrange(30))
        kind = self.pick([2, 2, 3, 4, 5, 6, 8, 8, 8, 8, 8, 8, 9, 9, 10], 1, 7, 11, 12)
        fields = self.fields(kind, who)
        if self.rng.random() < 0.03:
            fields[self.rng.randrange(len(fields))] = self.junk()
        self.seqs[who] += self.pick([1], 0, 2, -1, share=0.01)
        return who, msgpack.packb([kind, self.seqs[who], *fields])


def feed(bench: Bench, sent) -> None:
    for who, frame in sent:
        bench.hub.handle(b"client%d" % who, frame)
        bench.hub.settle()
    bench.hub.releases.commit()
    bench.hub.settle()


@given(seed=st.integers(0, 2**32), length=st.integers(1, 120))
@example(seed=574369, length=17)  # both members of two call an all-reduce with root 2
@settings(max_examples=200, deadline=None)
def test_nothing_that_is_sent_breaks_the_hub(benches, seed, length):
    """Two communicators of two exist from the start."""
    bench = benches()
    for rank in range(4):
        identity = b"client%d" % rank
        bench.hello(identity, rank)
        bench.hub.handle(
            identity,
            msgpack.packb(
                [5, 2, 1, 0, {}, 1, [0, 0, 0], b"u%d" % (rank // 2), 2, rank % 2, rank % 2, NCCL]
            ),
        )
    bench.hub.settle()
    assert len(bench.outbox) == 8 and bench.hub.diagnostics.bad_messages == 0
    fuzzer = Fuzzer(random.Random(seed))
    feed(bench, (fuzzer.message() for _ in range(length)))
    assert bench.hub.diagnostics.internal_errors == 0
    bench.hub.graph.check()
    assert all(encode(reply) for _, reply in bench.outbox)
    bench.close()


@given(
    sent=st.lists(
        st.tuples(st.integers(0, 3), st.binary(max_size=60) | junk.map(msgpack.packb)), max_size=20
    )
)
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_messages_are_counted(benches, sent):
    bench = benches()
    feed(bench, sent)
    assert bench.hub.diagnostics.internal_errors == 0
    assert bench.hub.diagnostics.bad_messages == bench.hub.diagnostics.messages == len(sent)
    bench.close()


ODD = [
    *(0, -1, 1, 2**31, 2**53, 2**59, 2**60, 2**63, 2**64 - 1, -(2**63), None, True),
    *(1.5, -1.0, 1e308, float("inf"), float("nan"), "", "x", "<", b"", b"\0" * 8, b"\xff" * 64),
    *([], {}, [[]], {"nodes": 1}, [1] * 20),
]


def mutated(rng: random.Random, value):
    """`value` with one place changed, dropped or added."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        at, how = rng.randrange(len(value)), rng.random()
        place = [] if how < 0.08 else [mutated(rng, value[at])]
        return [*value[:at], *place, *([rng.choice(ODD)] if how > 0.95 else []), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        return value | {(key := rng.choice(list(value))): mutated(rng, value[key])}
    if isinstance(value, str) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        put = rng.choice(["", "<", ">", ",", "(", ")", "::", "9" * 25, "\0", "-1"])
        return value[:at] + put + value[at + rng.randrange(5) :]
    if isinstance(value, bytes) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return value[:at] + rng.randbytes(rng.randrange(9)) + value[at + rng.randrange(9) :]
    return rng.choice(ODD)


def about_kernels(rng: random.Random, functions, request: int) -> tuple[int, list]:
    """(kind, fields) of a LOOKUP, MEASURED or HOST, mutated up to twice."""
    entry = rng.choice(rng.choice(functions))
    fields, context = list(entry.fields), entry.context
    pick = rng.random()
    if pick < 0.7:
        if entry.kind == SignatureKind.KERNEL:
            fields += [context, rng.randbytes(rng.choice([0, 64, 500]))]
        kind, body = 10, [request, 5, rng.randrange(1, 2**64), entry.kind, fields]
    elif pick < 0.85:
        times = [rng.choice([1, 1000, 5 * 10**6]) for _ in range(3)]
        kind, body = 13, [5, [[entry.kind, fields, context, times]]]
    else:
        sites = [[77, 2, "aten::add", 3, 5.0, 6.0]]
        calls = [["launch", 3, 1.0, 2.0]]
        kind = 14
        body = [5, {"score": 100.0, "latency": [1, 2.0, 3.0], "calls": calls, "sites": sites}]
    for _ in range(rng.randrange(3)):
        body[-1] = mutated(rng, body[-1])
    if kind == 10 and rng.random() < 0.05:
        body[3] = rng.choice(ODD)
    return kind, body


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
