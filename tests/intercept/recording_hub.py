"""A hub double that answers every rank at once and keeps the requests.

Why it exists: tests of the interceptor check the signatures and messages of a C call, not times. It
speaks docs/wire-protocol.md as far as one rank alone needs it; every kernel lasts `duration_ns` and
takes `works` of the launch queue (both may be functions of a signature's fields), every launch of
communication takes `collective_ns`. Kernels are of `kernel_class`, and may be slowed by
`contention_permille` beside communication; no collective here slows any. `source` is what it says of
every time. It `tells_watchdogs` every time, or none.
"""

import threading
from pathlib import Path

import msgpack
import zmq

from phantora_ns.protocol import (
    KERNEL_TABLE_HEADER,
    KERNEL_TABLE_MAGIC,
    KERNEL_TABLE_SLOT,
    KERNEL_TABLE_VERSION,
    KernelClass,
    KernelTableHeader,
    SignatureKind,
)

HELLO, SYNC, QUERY, TIMES, COMM_INIT, COMM_SPLIT, COMM_FREE, OPS, FETCH, LOOKUP, NOTE, BYE = range(
    1, 13
)


class RecordingHub:
    """Binds RUN_DIR/hub.sock in a thread; use as a context manager. `messages` holds every decoded
    array in order."""

    def __init__(
        self,
        run_dir,
        duration_ns=1000,
        works=1,
        collective_ns=0,
        source=7,
        tells_watchdogs=False,
        contention_permille=0,
        tells=None,
        kernel_class=0,
    ):
        self.messages = []
        self.tells = tells
        self.kernel_class = kernel_class
        self.duration_ns = duration_ns if callable(duration_ns) else lambda fields: duration_ns
        self.works = works if callable(works) else lambda fields: works
        self.collective_ns = collective_ns
        self.source = source
        self.tells_watchdogs = tells_watchdogs
        self.contention_permille = contention_permille
        self._path = Path(run_dir) / "hub.sock"
        (Path(run_dir) / "ranks").mkdir(exist_ok=True)
        slots = 64  # stays empty: every duration is asked for, and so recorded
        header = KernelTableHeader(KERNEL_TABLE_MAGIC, KERNEL_TABLE_VERSION, slots, 0, 0).pack()
        size = KERNEL_TABLE_HEADER.size + KERNEL_TABLE_SLOT.size * slots
        (Path(run_dir) / "kernels.tbl").write_bytes(header.ljust(size, b"\0"))
        self._times = {}
        self._ends = {}
        self._context = zmq.Context()
        self._thread = threading.Thread(target=self._serve, name="recording-hub")

    def __enter__(self):
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{self._path}")
        self._stop = self._context.socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        self._thread.start()
        return self

    def __exit__(self, *exc):
        stopper = self._context.socket(zmq.PAIR)
        stopper.connect("inproc://stop")
        stopper.send(b"")
        self._thread.join()
        stopper.close(0)
        self._socket.close(0)
        self._stop.close(0)
        self._context.term()

    def of(self, kind):
        """The recorded messages of one type."""
        return [m for m in self.messages if m[0] == kind]

    def signatures(self, kind):
        """The fields of each LOOKUP of a signature kind, in order."""
        return [m[6] for m in self.of(LOOKUP) if m[5] == kind]

    def notes(self, what):
        """The texts of the NOTEs of one sort (unsupported, warning, guess)."""
        return [m[4] for m in self.of(NOTE) if m[3] == what]

    def _serve(self):
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stop in ready:
                return
            client, data = self._socket.recv_multipart()
            message = msgpack.unpackb(data, strict_map_key=False)
            self.messages.append(message)
            answer = self._answer(client, message)
            if answer is not None:
                self._socket.send_multipart([client, msgpack.packb(answer)])

    def _told(self, nodes, ends, wanted):
        """What a reply tells of vertices: the times of some, of others that they come no earlier than some
        time, and that communication takes no less than some time, as `tells`, a random.Random, draws
        it. Nothing without one."""
        if self.tells is None:
            return [], [], []
        final = [i for i, node in enumerate(wanted) if node in nodes and self.tells.random() < 0.4]
        floors = [
            max(0, nodes.get(node, 0) - (0 if i in final else self.tells.randrange(200_000)))
            for i, node in enumerate(wanted)
        ]
        least = [
            max(0, self.collective_ns - self.tells.randrange(200_000)) if node in ends else 0
            for node in wanted
        ]
        return floors, final, least

    def _time(self, client, head):
        """t(head), with the nodes this client has defined."""
        nodes = self._times.setdefault(client, {0: 0})
        entries = zip(head[0::3], head[1::3], head[2::3], strict=True)
        return max(
            (
                nodes.get(node, 0) + lag + (sum(work[::2]) if isinstance(work, list) else work)
                for node, lag, work in entries
            ),
            default=0,
        )

    def _answer(self, client, message):
        kind = message[0]
        nodes = self._times.setdefault(client, {0: 0})
        ends = self._ends.setdefault(client, set())
        if kind in (SYNC, QUERY, TIMES, COMM_INIT, COMM_SPLIT, OPS):
            extra = message[3] if kind == OPS else message[4]
            for node, head in extra.get("nodes", []):
                nodes[node] = self._time(client, head)
        if kind == HELLO:
            return [HELLO, len(self._times), {}]
        if kind == SYNC:
            nodes[message[5]] = self._time(client, message[6])
            return [SYNC, message[2], nodes[message[5]], 0, []]
        if kind == QUERY:
            time = self._time(client, message[5])
            if not message[6]:
                return [QUERY, message[2], 1 + time if self.tells_watchdogs else 0, 0, [], [], []]
            ready = int(time <= self._time(client, message[6]))
            return [QUERY, message[2], ready, time, *self._told(nodes, ends, message[7])]
        if kind == TIMES:
            return [TIMES, message[2], [self._time(client, head) for head in message[5]]]
        if kind == LOOKUP:
            return [
                LOOKUP,
                message[2],
                self.duration_ns(message[6]),
                self.source,
                self.contention_permille,
                (KernelClass.COPY if message[5] == SignatureKind.MEMORY else self.kernel_class)
                << 8,
                self.works(message[6]),
                0,
            ]
        if kind == OPS:
            nodes[message[5]] = self._time(client, message[6]) + self.collective_ns
            ends.add(message[5])
        if kind == COMM_INIT:
            nodes[message[5]] = self._time(client, message[6])
            return [COMM_INIT, message[2], 1, nodes[message[5]]]
        return None
