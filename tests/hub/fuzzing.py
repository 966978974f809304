"""Random messages of a job's clients, for test_fuzz.py.

Why it exists: a hub that refuses a message at its first look shows nothing. Most messages are what a rank
could send at that point: they name vertices that exist, members issue the same operations, clocks
advance. The rest is wrong in one place, or altogether. In a folded job the ranks of a class send the same.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import defaultdict, deque
from pathlib import Path

import msgpack

from phantora_ns.hub.payload import Exchange
from phantora_ns.protocol import (
    LOG_CHUNK_BYTES,
    LOG_HEADER,
    LOG_VERSION,
    LogCall,
    LogRecord,
    LogStart,
    LogWork,
    Moment,
    OpFlag,
    Precision,
    SignatureKind,
    VERSION,
)

NCCL = 22809
RANKS, STRANGER = 4, 4
"""Clients 0 to 3 are ranks. The client after them has not said HELLO, and may."""
LEADER = 1
ODD_SHARES = [0.1, 0.03, 0.01]
"""Of a job's messages, so many may hold something that makes no sense, or of another type. After one of
communication the members often disagree, and everything that they ask for is refused."""
OWN, WHOLE = 0, 1
"""The communicators that exist from the start: of ranks 0 and 1 or 2 and 3, and of all ranks."""
KINDS = {
    **{1: 1, 2: 8, 3: 8, 4: 5, 5: 2, 6: 3, 7: 0.3, 8: 30, 9: 8, 10: 8, 11: 1, 12: 0.1},
    **{13: 2, 14: 1, 15: 4, 16: 3, 17: 1, 18: 4},
}
"""How often each kind of message is sent, in proportion."""

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


def about_kernels(
    rng: random.Random, functions, request: int, kind: int | None = None, odd: bool = True
) -> tuple[int, list]:
    """(kind, fields) of a LOOKUP, MEASURED or HOST. `odd`: mutated up to twice."""
    entry = rng.choice(rng.choice(functions))
    fields, context = list(entry.fields), entry.context
    if kind is None:
        pick = rng.random()
        kind = 10 if pick < 0.7 else 13 if pick < 0.85 else 14
    if kind == 10:
        if entry.kind == SignatureKind.KERNEL:
            fields += [context, rng.randbytes(rng.choice([0, 64, 500]))]
        body = [request, 5, rng.randrange(1, 2**64), entry.kind, fields]
    elif kind == 13:
        times = [rng.choice([1, 1000, 5 * 10**6]) for _ in range(3)]
        body = [5, [[entry.kind, fields, context, times]]]
    else:
        sites = [[77, 2, "aten::add", 3, 5.0, 6.0]]
        calls = [["launch", 3, 1.0, 2.0]]
        body = [5, {"score": 100.0, "latency": [1, 2.0, 3.0], "calls": calls, "sites": sites}]
    for _ in range(rng.randrange(3) if odd else 0):
        body[-1] = mutated(rng, body[-1])
    if odd and kind == 10 and rng.random() < 0.05:
        body[3] = rng.choice(ODD)
    return kind, body


def write_log(path: Path) -> None:
    """A process's log of its work, which PROFILE asks for: calls and work after its first vertices."""
    records = [(LogRecord.START, LogStart(LOG_VERSION, 0, RANKS, 0, 77).pack())]
    for vertex in range(20):
        call = LogCall(0, vertex, 0, Moment(vertex, 10), Moment(vertex, 50))
        work = LogWork(0, vertex, 7, 0, 0, 0, 100, 10)
        records += [
            (LogRecord.CALL, call.pack()),
            (LogRecord.WORK, work.pack() + struct.pack("<Qqqq", vertex, 10, 100, 10)),
        ]
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        for kind, record in records:
            file.write(LOG_HEADER.pack(kind, 1, LOG_HEADER.size + len(record)) + record)
        file.truncate(LOG_CHUNK_BYTES)


def opening(who: int, size: int, uid: bytes = b"") -> list[bytes]:
    """The first messages of a rank after HELLO: its two communicators. `size`: of the job. `uid`: what
    distinguishes this job from others."""
    own = [1, 0, {}, 1, [0, 0, 0], b"own%d %s" % (who // 2, uid), 2, who % 2, who % 2, NCCL]
    whole = [2, 0, {}, 2, [1, 0, 0], b"whole %s" % uid, size, who, who % 2, NCCL]
    return [msgpack.packb([5, 2, *own]), msgpack.packb([5, 3, *whole])]


class State:
    """What a client has done so far. The ranks of a class of a folded job share it."""

    def __init__(self) -> None:
        self.made = 2  # the largest vertex: those of the first two COMM_INITs exist
        self.known = deque([0, 1, 2], maxlen=6)
        self.clock = 0
        self.joined = [0, 0]
        self.results = deque(maxlen=8)
        self.owed = defaultdict(deque)
        """Operations that other members have issued and this one has not yet, by communicator."""


class Fuzzer:
    """`communicators`: of each rank, the numbers that the hub gave to those of `opening`. `size`: of the
    job; more than RANKS if it is folded. `functions`: recorded signatures by function. `pages`: rank
    statistics that exist. `lasting`: the hub has to serve other jobs later. So no time is so late that a few
    of them end time, and nobody comes in the place of a rank, which the next one would be compared with.
    `uid`: as in `opening`."""

    def __init__(
        self,
        rng: random.Random,
        functions,
        communicators: list[list[int]],
        size: int = RANKS,
        pages: list[str] = (),
        lasting: bool = False,
        uid: bytes = b"",
    ) -> None:
        self.rng = rng
        self.functions = functions
        self.odd_share = rng.choice(ODD_SHARES)
        self.communicators = [*communicators, communicators[0]]
        self.size, self.lasting, self.pages, self.uid = size, lasting, pages, uid
        own = [State() for _ in range(RANKS)]
        self.states = [*(own[:2] * 2 if self.folded else own), State()]
        self.seqs = [3] * RANKS + [0]
        self.requests = itertools.count(3)
        self.queued = deque()
        """What the other ranks of a class send too: (client, kind, fields)."""
        self.defined = []
        """The vertices that the message defines."""
        self.odd = False
        """Whether the message that is being made may hold a number that makes no sense."""

    @property
    def folded(self) -> bool:
        return self.size > RANKS

    def pick(self, usual, *odd):
        """One of `usual`; in a message that is to be odd, now and then one of `odd`."""
        chosen = odd if odd and self.odd and self.rng.random() < 0.15 else usual
        return self.rng.choice(chosen)

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

    def length(self) -> int:
        odd = (2**63, -1, *([] if self.lasting else [2**55]))
        return self.pick([0, 1, 5, 100, 3_000, 70_000], *odd)

    def clock(self, who: int) -> int:
        """The client's clock, which mostly goes on."""
        state = self.states[who]
        state.clock += self.pick([0, 0, 1, 5, 100, 3_000, 70_000])
        odd = (0, 2**63, -1, *([] if self.lasting else [2**55]))
        return self.pick([state.clock], *odd)

    def vertex(self, who: int) -> int:
        """A vertex that exists. Those of messages that were refused do not, but for the origin."""
        return 0 if self.rng.random() < 0.4 else self.pick(list(self.states[who].known), 99)

    def work(self):
        """Work of a term, or kernels that communication stretches."""
        if self.rng.random() < 0.7:
            return self.length()
        return [self.length() for _ in range(self.pick([2, 4], 0, 1))]

    def head(self, who: int) -> list:
        """A time expression."""
        terms = [
            (self.vertex(who), self.length(), self.work()) for _ in range(self.pick([1, 1, 2], 0))
        ]
        return [x for term in terms for x in term]

    def fresh(self, who: int) -> int:
        """A vertex that the message defines."""
        state = self.states[who]
        if self.odd:
            return self.rng.choice([0, 1, 2**40, -3, state.made, state.made + 500])
        state.made += self.pick([1, 1, 1, 2])
        self.defined.append(state.made)
        return state.made

    def extra(self, who: int) -> dict:
        if self.rng.random() < 0.6:
            return {}
        makers = {
            "nodes": lambda: [
                [self.fresh(who), self.head(who)] for _ in range(self.rng.randrange(3))
            ],
            "stalls": lambda: [
                [self.pick([0, 1], -7), self.head(who), self.head(who)]
                for _ in range(self.rng.randrange(3))
            ],
            "beside": lambda: self.pick([1, 1, 0], None, -3, 2**63),
            "waited": lambda: self.pick([0, 1_000, 10**6], None, 2**63),
            "keep": lambda: self.pick([max(0, self.states[who].made - 20)], None, 2**63),
        }
        return {
            key: self.junk() if self.odd and self.rng.random() < 0.05 else make()
            for key, make in makers.items()
            if self.rng.random() < (0.6 if key != "keep" else 0.2)
        }

    def op(self, who: int, slot: int) -> list:
        """An operation on one of the two communicators."""
        kinds = [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9] if slot == OWN else [0, 0, 1, 2, 5]
        kind = self.pick(kinds, -1, 10)
        count = self.pick([4, 8, 1 << 20], 0, 2**55)
        peer = 1 - who % 2 if kind >= 8 else self.pick([0], 1)
        peer, dtype, redop = (
            self.pick([peer], -1, 2),
            self.pick([7, 9], 0, 10, 12, 99),
            self.pick([0], 1, 4, -1),
        )
        payload = None
        if 0 <= kind < 10 and count < 64 and self.rng.random() < 0.4:
            size = 1 if kind >= 8 else 2 if slot == OWN else self.size
            held = Exchange(kind, count, dtype, redop, peer, size).send_bytes()
            payload = self.pick([bytes(held)], b"", b"123")
        flags = self.pick([0, OpFlag.WANTS_RESULT, OpFlag.UNDEFINED, 3])
        return [kind, count, dtype, redop, peer, payload, flags]

    def ops(self, who: int, slot: int) -> list:
        """A launch: mostly what another member has issued before, so that members agree."""
        owed = self.states[who].owed[slot]
        if owed and not self.odd:
            return owed.popleft()
        ops = [self.op(who, slot) for _ in range(self.pick([1, 1, 2, 0]))]
        if self.odd or who == STRANGER:
            return ops
        others = self.states[:RANKS] if slot == WHOLE else [self.states[who ^ 1]]
        # the other end of a SEND is a RECV
        back = [
            [17 - op[0], *op[1:4], who % 2, *op[5:]] if op[0] in (8, 9) else [*op] for op in ops
        ]
        for state in {id(state): state for state in others}.values():
            if state is not self.states[who]:
                state.owed[slot].append(back)
        return ops

    def communicator(self, who: int, slot: int | None = None) -> int:
        own = self.communicators[who]
        return self.pick(
            [own[self.pick([OWN, OWN, WHOLE]) if slot is None else slot]], 0, 3, 77, -1
        )

    def info(self) -> dict:
        """Who says HELLO, as the table in protocol/messages.toml has it."""
        info = {
            "pid": 77,
            "rank": self.pick([-1] if self.lasting else [-1, 1, 2], 2**31, None),
            "local_rank": 0,
            "world_size": self.size,
            "node": self.pick([0, 1], 99),
            "shm": self.pick(self.pages or ["none"], "", "../x"),
            "argv0": "fuzz",
            "leader": self.pick([0], 1),
            "measures": self.pick([0, 1]),
        }
        return {key: value for key, value in info.items() if self.rng.random() < 0.95}

    def fields(self, kind: int, who: int) -> list:
        """The fields of a message after `seq`."""
        state, number, clock = self.states[who], next(self.requests), self.clock(who)
        if kind == 1:
            return [self.pick([VERSION], 0), self.info()]
        if kind in (7, 12, 17):
            return [clock, self.communicator(who)] if kind == 7 else [clock]
        if kind == 9:
            vertex, index = self.pick([(state.made, 0)], (0, 1))
            if state.results and not self.odd:
                vertex, index = state.results.popleft()
            return [number, clock, vertex, index]
        if kind in (10, 13, 14):
            _, fields = about_kernels(self.rng, self.functions, number, kind, self.odd)
            fields[1 if kind == 10 else 0] = clock
            return fields
        if kind == 11:
            return [clock, self.pick(["unsupported", "guess"], "odd"), f"text {number}"]
        if kind == 8:
            slot, extra, vertex = self.pick([OWN, OWN, WHOLE]), self.extra(who), self.fresh(who)
            ops = self.ops(who, slot)
            if not self.odd:
                state.results += [
                    (vertex, at) for at, op in enumerate(ops) if op[6] & OpFlag.WANTS_RESULT
                ]
            return [clock, extra, self.communicator(who, slot), vertex, self.head(who), ops]
        flop = self.pick([[], [10**12] * len(Precision.LABELS)], [1])
        rest = [clock, self.extra(who)]
        if kind == 15:
            return [*rest, self.head(who), self.length(), self.length(), flop]
        rest = [number, *rest]
        if kind == 3:
            head, host = self.head(who), self.head(who) if self.rng.random() < 0.9 else []
            return [*rest, head, host, [*head[::3], *host[::3], *list(state.known)[:2]]]
        if kind == 4:
            return [*rest, [self.head(who) for _ in range(self.rng.randrange(4))]]
        if kind == 16:
            return [*rest, self.pick([0, 200, 2**20], -1, 2**63)]
        if kind == 18:
            return [*rest, self.head(who)]
        rest = [*rest, self.fresh(who), self.head(who)]
        if kind == 2:
            return rest
        if kind == 5:
            slot = self.pick([OWN, OWN, WHOLE])
            state.joined[slot] += 1
            group = b"of%d" % (who // 2) if slot == OWN else b"all"
            uid = b"%s %d %s" % (group, self.pick([state.joined[slot]], 1), self.uid)
            size, rank = (2, who % 2) if slot == OWN else (self.size, who)
            size = self.pick([size], 0, 1, 3)
            nccl = self.pick([NCCL], 0, 23007, -1)
            return [*rest, uid, size, rank, who % 2, nccl]
        assert kind == 6
        return [*rest, self.communicator(who), self.pick([0], -1), self.pick([0, 1])]

    def alike(self, who: int, kind: int, fields: list) -> list:
        """The same message of the rank of this class that `who` is not."""
        own, other = (self.communicators[at][OWN] for at in (who, who ^ 2))
        if kind in (6, 7, 8):
            at = {6: 5, 7: 1, 8: 2}[kind]
            number = other if fields[at] == own else fields[at]
            return [*fields[:at], number, *fields[at + 1 :]]
        if kind == 5 and isinstance(fields[5], bytes):
            uid = fields[5].replace(b"of%d" % (who // 2), b"of%d" % (1 - who // 2))
            rank = fields[7] if uid != fields[5] else who ^ 2
            return [*fields[:5], uid, fields[6], rank, *fields[8:]]
        return [*fields]

    def message(self) -> tuple[int, bytes]:
        """(client, frame): mostly well formed; now and then a field, a sequence number or the whole
        frame is junk."""
        if self.queued:
            return self.framed(*self.queued.popleft())
        who = self.rng.randrange(RANKS) if self.rng.random() < 0.99 else STRANGER
        if self.rng.random() < self.odd_share / 10:
            return who, self.rng.randbytes(self.rng.randrange(30))
        (kind,) = self.rng.choices(list(KINDS), KINDS.values())
        if kind == 13:
            who = self.pick([LEADER], 0)
        self.odd = self.rng.random() < self.odd_share
        self.defined.clear()
        fields = self.fields(kind, who)
        if self.folded and who < RANKS:
            self.queued.append((who ^ 2, kind, self.alike(who, kind, fields)))
        self.states[who].known += self.defined
        pick = self.rng.random() if self.odd else 1
        if pick < 0.2:
            fields[self.rng.randrange(len(fields))] = self.junk()
        elif pick < 0.5:
            changed = mutated(self.rng, fields)
            fields = changed if isinstance(changed, list) else [changed]
        return self.framed(who, kind, fields)

    def framed(self, who: int, kind: int, fields: list) -> tuple[int, bytes]:
        self.seqs[who] += self.pick([1], 0, 2, -1) if self.odd else 1
        return who, msgpack.packb([kind, self.seqs[who], *fields])
