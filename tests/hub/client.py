"""A rank as the hub sees it, in Python: speaks docs/wire-protocol.md over a real DEALER, with a
real locked page.

Why it exists: the hub's tests must not need the interceptor, and the protocol's page is checked
from both sides. One client may be used by one thread at a time. Its host clock is an anchor and an
offset, as the interceptor's.
"""

import fcntl
import itertools
import mmap
import os
import struct
from pathlib import Path

import msgpack
import zmq

from phantora_ns.protocol import RANK_STATS_MAGIC, RANK_STATS_VERSION, VERSION

(
    ERROR,
    HELLO,
    SYNC,
    QUERY,
    TIMES,
    COMM_INIT,
    COMM_SPLIT,
    COMM_FREE,
    OPS,
    FETCH,
    LOOKUP,
    NOTE,
    BYE,
    MEASURED,
    HOST,
    STEP,
) = range(16)
PARTING, TURN = 17, 18
REQUESTS = (SYNC, QUERY, TIMES, COMM_INIT, COMM_SPLIT, FETCH, LOOKUP, TURN)
(
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    REDUCE,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SEND,
    RECV,
) = range(10)
FP32, BF16 = 7, 9
NCCL = 22809
"""The job's NCCL: 2.28.9."""
SUM, PROD, MAX, MIN, AVG = range(5)

_names = itertools.count()
opened = []
"""Every client made so far; the fixtures close what a test leaves open."""


class HubError(Exception):
    """The hub answered with an error; the text is its. `said`: whether the hub has printed it."""

    def __init__(self, text: str, said: int) -> None:
        super().__init__(text)
        self.said = said


class Client:
    """One process of the job. `clock` is virtual nanoseconds since the last anchor plus that
    anchor's time."""

    def __init__(
        self,
        run_dir: Path,
        rank: int = 0,
        node: int = 0,
        timeout_ms: int = 20_000,
        world: int = -1,
        version: int = VERSION,
        leader: bool = False,
        **info,
    ) -> None:
        opened.append(self)
        self.closed = False
        self.rank = rank
        self.name = f"{os.getpid()}-{next(_names)}"
        path = Path(run_dir) / "ranks" / self.name
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self._fd, 4096)
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
        self.page = mmap.mmap(self._fd, 4096)
        struct.pack_into("<QQ", self.page, 0, RANK_STATS_MAGIC, RANK_STATS_VERSION)
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, timeout_ms)
        self.socket.connect(f"ipc://{Path(run_dir).resolve()}/hub.sock")
        self.seq = 0
        self.requests = itertools.count(1)
        self.nodes = itertools.count(1)
        self.anchor, self.anchor_time, self.offset = 0, 0, 0
        self.stream = []
        self.replies = {}
        self.send(
            HELLO,
            version,
            {
                "pid": os.getpid(),
                "rank": rank,
                "local_rank": rank,
                "world_size": world,
                "node": node,
                "shm": self.name,
                "argv0": "test",
                "leader": int(leader),
                **info,
            },
        )
        self.welcome = msgpack.unpackb(self.socket.recv())

    # ---- transport

    def send(self, kind: int, *fields) -> None:
        self.seq += 1
        self.set_word(3, self.seq)
        if kind in REQUESTS:
            self.set_word(5, 1)
        self.socket.send(msgpack.packb([kind, self.seq, *fields]))

    def look_busy(self) -> None:
        """Until its next request is answered the hub takes this client for one that is about to
        act, however long a test's own process sleeps."""
        self.set_word(5, 1)

    def set_word(self, index: int, value: int) -> None:
        """Stores a 64-bit field of the page."""
        struct.pack_into("<Q", self.page, index * 8, value)

    def wait(self, request: int) -> list:
        """The reply to a request; raises HubError, or zmq.Again after the time-out."""
        while request not in self.replies:
            reply = msgpack.unpackb(self.socket.recv())
            self.replies[reply[1]] = reply
        reply = self.replies.pop(request)
        self.set_word(5, 0)
        if reply[0] == ERROR:
            raise HubError(*reply[2:])
        return reply

    # ---- the rank's clock and one stream

    @property
    def clock(self) -> int:
        return self.anchor_time + self.offset

    def advance(self, ns: int) -> None:
        """Host time passes."""
        self.offset += ns
        self.set_word(2, self.clock)

    def host_head(self) -> list:
        return [self.anchor, self.offset, 0]

    def compute(self, ns: int) -> None:
        """A kernel on the stream: issued now, after what is there already."""
        self.stream = [
            x
            for i in range(0, len(self.stream), 3)
            for x in (*self.stream[i : i + 2], self.stream[i + 2] + ns)
        ]
        self.stream += [self.anchor, self.offset, ns]

    def anchored(self, node: int, time: int) -> None:
        self.anchor, self.anchor_time, self.offset = node, time, 0
        self.set_word(2, time)

    # ---- messages

    def start_sync(self, extra=None) -> tuple[int, int]:
        request, node = next(self.requests), next(self.nodes)
        self.send(SYNC, request, self.clock, extra or {}, node, self.host_head() + self.stream)
        return request, node

    def finish_sync(self, request: int, node: int) -> int:
        time = self.wait(request)[2]
        self.anchored(node, time)
        self.stream = []
        return time

    def sync(self, extra=None) -> int:
        return self.finish_sync(*self.start_sync(extra))

    def start_init(
        self, uid: bytes, size: int, rank: int, device: int | None = None, nccl: int = NCCL
    ) -> tuple[int, int]:
        request, node = next(self.requests), next(self.nodes)
        self.send(
            COMM_INIT,
            request,
            self.clock,
            {},
            node,
            self.host_head(),
            uid,
            size,
            rank,
            rank if device is None else device,
            nccl,
        )
        return request, node

    def finish_init(self, request: int, node: int) -> int:
        _, _, comm, time = self.wait(request)
        self.anchored(node, time)
        return comm

    def init(self, uid: bytes, size: int, rank: int, device: int | None = None) -> int:
        return self.finish_init(*self.start_init(uid, size, rank, device))

    def start_split(self, comm: int, color: int, key: int) -> tuple[int, int]:
        request, node = next(self.requests), next(self.nodes)
        self.send(COMM_SPLIT, request, self.clock, {}, node, self.host_head(), comm, color, key)
        return request, node

    def finish_split(self, request: int, node: int) -> tuple[int, int, int]:
        _, _, comm, rank, size, time = self.wait(request)
        self.anchored(node, time)
        return comm, rank, size

    def ops(self, comm: int, *ops, extra=None) -> int:
        """One launch on the stream; each op is [kind, bytes, dtype, redop, peer, payload, flags].
        Returns its node."""
        node = next(self.nodes)
        self.send(
            OPS, self.clock, extra or {}, comm, node, self.host_head() + self.stream, list(ops)
        )
        self.stream = [node, 0, 0]
        return node

    def all_reduce(self, comm: int, size: int, dtype: int = FP32) -> int:
        return self.ops(comm, [ALL_REDUCE, size, dtype, SUM, -1, None, 0])

    def start_fetch(self, node: int, index: int = 0) -> int:
        request = next(self.requests)
        self.send(FETCH, request, self.clock, node, index)
        return request

    def fetch(self, node: int, index: int = 0) -> bytes:
        return self.wait(self.start_fetch(node, index))[2]

    def start_query(self, head: list, host_head: list | None = None) -> int:
        request = next(self.requests)
        self.send(
            QUERY,
            request,
            self.clock,
            {},
            head,
            self.host_head() if host_head is None else host_head,
            head[::3],
        )
        return request

    def query(self, head: list, host_head: list | None = None) -> int:
        return self.wait(self.start_query(head, host_head))[2]

    def times(self, *heads) -> list[int]:
        request = next(self.requests)
        self.send(TIMES, request, self.clock, {}, list(heads))
        return self.wait(request)[2]

    def start_turn(self) -> int:
        request = next(self.requests)
        self.send(TURN, request, self.clock, {}, self.host_head())
        return request

    def start_lookup(self, key: int, kind: int, fields: list) -> int:
        request = next(self.requests)
        self.send(LOOKUP, request, self.clock, key, kind, fields)
        return request

    def lookup(self, key: int, kind: int, fields: list) -> list:
        return self.wait(self.start_lookup(key, kind, fields))

    def measured(self, *samples: list) -> None:
        """A leader's measurements, each [kind, fields, context, [ns, ...]]."""
        self.send(MEASURED, self.clock, list(samples))

    def host_costs(self, costs: dict) -> None:
        self.send(HOST, self.clock, costs)

    def note(self, what: str, text: str) -> None:
        self.send(NOTE, self.clock, what, text)

    def part(self) -> None:
        self.send(PARTING, self.clock)

    def bye(self) -> None:
        self.send(BYE, self.clock)
        self.socket.setsockopt(zmq.LINGER, 2000)
        self.close()

    def close(self) -> None:
        """Lets go of everything, the page's lock included, as a death would."""
        if self.closed:
            return
        self.closed = True
        self.socket.close()
        self.page.close()
        os.close(self._fd)


def form(clients, uid: bytes = b"u" * 128, devices=None) -> int:
    """All `clients` form one communicator in list order; the same number for every one."""
    opened = [
        c.start_init(uid, len(clients), i, None if devices is None else devices[i])
        for i, c in enumerate(clients)
    ]
    numbers = {c.finish_init(*o) for c, o in zip(clients, opened)}
    assert len(numbers) == 1
    return numbers.pop()


def pair(hub):
    """Two ranks on two servers that have all-reduced and wait for the end, which a flow of another
    rank could delay."""
    clients = [Client(hub.run_dir, rank, rank) for rank in range(2)]
    comm = form(clients, devices=[0, 0])
    for client in clients:
        client.advance(5_000)
        client.all_reduce(comm, 1 << 20)
    return clients, [client.start_sync() for client in clients]
