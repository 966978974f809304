"""The hub: what it knows of a run, and what it does with each message.

Why it exists: every process of the job talks to this one. A message is checked (protocol.py),
entered into the event graph (sim/graph.py), and answered when the answer can be released
(horizon.py). The rule kept here: whatever a client sends, the hub goes on; a message that makes no
sense is counted, and a request among them is answered with an error.

It holds no socket: messages come by `handle`, a batch ends with `settle`, and answers lie in
`outbox` until loop.py sends them.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from phantora_ns.hub import horizon, protocol
from phantora_ns.hub.awaiting import POLL_MS, Awaiting, Held
from phantora_ns.hub.communicators import Communicators, JobError, Waiter
from phantora_ns.hub.fetches import LOOK_S, Fetches
from phantora_ns.hub.kernel_table import KernelTable
from phantora_ns.hub.protocol import BadMessage
from phantora_ns.hub.recording import FLUSH_MS, Recorder
from phantora_ns.hub.registry import Client, Page, PageError
from phantora_ns.hub.requests import Arrival, Query, Request, Times
from phantora_ns.hub.trace_times import TraceTimes
from phantora_ns.kernels import signature
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.protocol import KERNEL_TABLE_FILE, RANK_STATS_FILE, Source
from phantora_ns.sim.graph import BadExpression, BadOp, EventGraph

COMMIT_EVERY = 4096
"""Messages between two commits: each looks at every client, and history in between is small."""
INTERNAL = "the hub failed (this is a defect of phantora-ns): the lines above on standard error say how; please report them"
MAX_NOTES = 1000
"""Different texts remembered per kind of note, so that a client cannot grow the hub."""


def no_drag(kind: int, fields: list, duration_ns: int, bound_by: int) -> int:
    """As kernels/contention.py, of a GPU on which nothing slows anything."""
    return 0


def one_work(kind: int, fields: list) -> int:
    """As kernels/queue_slots.py, where every call is one work."""
    return 1


class Hub:
    """All state of a run. `gpus_per_node` maps a client's node and device to a global GPU number
    below `gpus`."""

    def __init__(
        self,
        run_dir: Path,
        graph: EventGraph,
        kernel_times,
        *,
        nodes: int,
        gpus_per_node: int,
        config: dict | None = None,
        table_capacity: int | None = None,
        drag_permille: Callable[[int, list, int, int], int] = no_drag,
        works: Callable[[int, list], int] = one_work,
        optimistic: bool = False,
        leader: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.graph = graph
        self.kernel_times = kernel_times
        self.drag_permille = drag_permille
        self.works = works
        self.optimistic = optimistic
        self.config = config or {}
        options = {} if table_capacity is None else {"capacity": table_capacity}
        self.table = KernelTable(run_dir / KERNEL_TABLE_FILE, **options)
        self.clients: dict[bytes, Client] = {}
        self.everyone: list[Client] = []
        self.communicators = Communicators(graph, nodes, gpus_per_node)
        self.waiting: list[Request] = []
        self.awaiting = Awaiting(run_dir, leader)
        self.fetches = Fetches()
        self.recorder = recorder
        self.outbox: list[tuple[bytes, list]] = []
        self.messages = 0
        self.bad_messages = 0
        self.internal_errors = 0
        self.notes: dict[str, Counter] = {
            "unsupported": Counter(),
            "warning": Counter(),
            "guess": Counter(),
        }
        self.errors: list[str] = []
        self.traces: TraceTimes | None = None
        """Set before the first client comes, when the run is traced."""
        self._held = False
        self._sampled = 0.0
        self._next_commit = COMMIT_EVERY
        self._handlers = {
            protocol.SYNC: self._sync, protocol.QUERY: self._query, protocol.TIMES: self._times,
            protocol.COMM_INIT: self._comm_init, protocol.COMM_SPLIT: self._comm_split, protocol.COMM_FREE: self._comm_free,
            protocol.OPS: self._ops, protocol.FETCH: self._fetch, protocol.LOOKUP: self._lookup, protocol.NOTE: self._note,
            protocol.BYE: self._bye, protocol.MEASURED: self._measured, protocol.HOST: self._host,
        }  # fmt: skip

    # ---- one message ----

    def handle(self, identity: bytes, frame: bytes) -> None:
        """Takes one message; never raises because of what is in it."""
        self.messages += 1
        client = self.clients.get(identity)
        request = None
        try:
            message = protocol.parse(frame)
            kind = message[0]
            if kind in protocol.REQUESTS:
                request = message[2]
            if kind == protocol.HELLO:
                self._hello(identity, client, message)
                return
            if client is None:
                raise BadMessage("no HELLO came first", request)
            self._count(client, message[1], request)
            if client.failure is not None and request is not None:
                self._refuse(client.identity, request, client.failure)
                return
            if request is not None and request in client.pending:
                raise BadMessage(f"request {request} is open already")
            self._handlers[kind](client, message)
        except (BadMessage, BadExpression, BadOp, SignatureError) as error:
            self.bad_messages += 1
            if isinstance(error, BadMessage):
                request = request if error.request is None else error.request
                if client is not None and error.seq == client.seq + 1:
                    client.seq += 1
            if request is not None:
                before = (
                    f" (before that: {client.complaint})"
                    if client is not None and client.complaint
                    else ""
                )
                self._refuse(
                    identity, request, f"the hub did not understand a message: {error}{before}"
                )
            if client is not None and client.complaint is None:
                client.complaint = str(error)
        except JobError as error:
            self._fail(str(error), error.members)
            if request is not None:
                self._refuse(identity, request, str(error))
        except Exception:  # ours, not the client's
            self._internal_error()
            if request is not None:
                self._refuse(identity, request, INTERNAL)

    def unreadable(self) -> None:
        """Counts what came and is not even a message."""
        self.messages += 1
        self.bad_messages += 1

    def _count(self, client: Client, seq: int, request: int | None) -> None:
        expected = client.seq + 1
        client.messages += 1
        client.idle = False
        client.still = 0
        client.fetching = None
        if seq == expected:
            client.seq = seq
        elif seq > expected:
            client.seq = seq
            self.bad_messages += 1
        else:
            raise BadMessage(f"message {seq} came after message {client.seq}", request)

    def _hello(self, identity: bytes, client: Client | None, message: list) -> None:
        _, seq, version, info = message
        if client is not None or seq != 1:
            raise BadMessage("a second HELLO")
        if version != protocol.VERSION:
            self._send(
                identity,
                [
                    protocol.HELLO,
                    -1,
                    {"error": f"the hub speaks version {protocol.VERSION}, not {version}"},
                ],
            )
            raise BadMessage("another version")
        name = info.get("shm")
        if type(name) is not str or not name or "/" in name or "\0" in name or name in (".", ".."):
            self._send(
                identity,
                [
                    protocol.HELLO,
                    -1,
                    {"error": "shm must name a file in the run directory's ranks folder"},
                ],
            )
            raise BadMessage("no shm")
        try:
            page = Page(self.run_dir / RANK_STATS_FILE / name)
        except PageError as error:
            self._send(identity, [protocol.HELLO, -1, {"error": str(error)}])
            raise BadMessage(str(error)) from None
        client = Client(identity, self.graph.add_client(), info, page)
        self.clients[identity] = client
        self.everyone.append(client)
        if self.traces is not None:
            self.traces.join(client.number, client.rank, name)
        if client.leads:
            self.awaiting.led.add(client.rank)
        self._send(identity, [protocol.HELLO, client.number, self.config])

    def _extra(self, client: Client, extra: dict) -> None:
        number = client.number
        graph = self.graph
        nodes = extra.get("nodes")
        if nodes:
            if type(nodes) is not list:
                raise BadMessage("nodes is not an array")
            for item in nodes:
                if type(item) is not list or len(item) != 2:
                    raise BadMessage("a definition is [node, head]")
                graph.define(number, item[0], graph.expression(number, item[1]))
        stalls = extra.get("stalls")
        if stalls:
            if type(stalls) is not list:
                raise BadMessage("stalls is not an array")
            for item in stalls:
                if type(item) is not list or len(item) != 3 or type(item[0]) is not int:
                    raise BadMessage("a stall is [device, head, head]")
                graph.stall(
                    number,
                    item[0],
                    graph.expression(number, item[1]),
                    graph.expression(number, item[2]),
                )
        keep = extra.get("keep")
        if keep is not None:
            if type(keep) is not int or keep < 0:
                raise BadMessage("keep is a node number")
            graph.forget(number, keep)

    def _wait(self, client: Client, request: Request) -> None:
        client.pending[request.number] = request
        self.waiting.append(request)

    def _sync(self, client: Client, message: list) -> None:
        _, _, number, client.clock_ns, extra, node, flat = message
        self._extra(client, extra)
        head = self.graph.expression(client.number, flat)
        self._wait(
            client, Arrival(client, number, self.graph.define(client.number, node, head), head)
        )

    def _query(self, client: Client, message: list) -> None:
        _, _, number, client.clock_ns, extra, flat, host_flat = message
        self._extra(client, extra)
        query = Query(
            client,
            number,
            self.graph.expression(client.number, flat),
            self.graph.expression(client.number, host_flat),
        )
        if host_flat:
            self._wait(client, query)
        else:  # a thread that only watches: it is told what is known now, and bounds nothing
            self.graph.run()
            reached = query.head.reach()
            self._send(
                client.identity, [protocol.QUERY, number, 0 if reached is None else 1 + reached[0]]
            )

    def _times(self, client: Client, message: list) -> None:
        _, _, number, client.clock_ns, extra, flats = message
        self._extra(client, extra)
        self._wait(
            client,
            Times(client, number, [self.graph.expression(client.number, flat) for flat in flats]),
        )

    def _comm_init(self, client: Client, message: list) -> None:
        client.clock_ns = message[3]
        self._extra(client, message[4])
        self._wait(client, self.communicators.join(client, message[2], *message[5:]))

    def _comm_split(self, client: Client, message: list) -> None:
        client.clock_ns = message[3]
        self._extra(client, message[4])
        self._wait(client, self.communicators.split(client, message[2], *message[5:]))

    def _comm_free(self, client: Client, message: list) -> None:
        client.clock_ns = message[2]
        self.communicators.leave(client, message[3])

    def _ops(self, client: Client, message: list) -> None:
        _, _, client.clock_ns, extra, comm, node, flat, items = message
        self._extra(client, extra)
        for waiter in self.communicators.launch(
            client, comm, node, flat, protocol.parse_ops(items), bool(extra.get("beside"))
        ):
            self._deliver(waiter)

    def _fetch(self, client: Client, message: list) -> None:
        _, _, number, client.clock_ns, node, index = message
        waiter = self.communicators.fetch(client, number, node, index)
        if waiter.exchange.complete:
            self._deliver(waiter)
            return
        self.fetches.open(waiter)
        if not client.leads:
            client.fetching = number

    def _lookup(self, client: Client, message: list) -> None:
        _, _, number, client.clock_ns, key, kind, fields = message
        if not 0 < key < 1 << 64:
            raise BadMessage("a signature's key is 64 bits and not zero")
        context = parameters = None
        if kind == 0 and len(fields) == 14:
            *fields, context, parameters = fields
        held = Held(
            client,
            number,
            key,
            signature.encode(kind, fields),
            (kind, fields),
            (context, parameters),
        )
        if self.awaiting.leader is not None and not self.kernel_times.measured(kind, fields):
            if client.measures:  # it has just tried
                self.awaiting.give_up(held.token)
                self._tell_times(self.awaiting.take(held.token), estimated=True)
            elif self.awaiting.expected(self.clients.values()) and self.awaiting.hold(held):
                return
        client.pending[number] = held
        self._tell_times([held])

    def _tell_times(self, requests: Iterable[Held], estimated: bool = False) -> None:
        """Answers LOOKUPs with what is known now; `estimated`: they waited for a measurement in
        vain."""
        for request in requests:
            duration_ns, source, bound_by = self.kernel_times.lookup(
                *request.signature, *request.rest
            )
            drag_permille = self.drag_permille(*request.signature, duration_ns, bound_by)
            works = self.works(*request.signature)
            self.table.put(request.key, duration_ns, source, drag_permille, bound_by, works)
            if self.awaiting.leader is not None and source != Source.EXACT:
                self.awaiting.guessed(request, estimated)
            self._answer(
                request,
                [
                    protocol.LOOKUP,
                    request.number,
                    duration_ns,
                    source,
                    drag_permille,
                    bound_by,
                    works,
                ],
            )

    def _measured(self, client: Client, message: list) -> None:
        _, _, client.clock_ns, items = message
        if not client.leads:
            raise BadMessage("only a leader measures")
        revised = False
        for kind, fields, context, durations_ns in protocol.parse_samples(items):
            token = signature.encode(kind, fields)
            if not durations_ns:
                self.awaiting.give_up(token)
                self._tell_times(self.awaiting.take(token), estimated=True)
                continue
            if self.recorder is not None:
                self.recorder.measured(kind, fields, context, durations_ns)
            if self.kernel_times.learn(kind, fields, durations_ns):
                duration_ns, source, bound_by = self.kernel_times.lookup(kind, fields)
                revised |= self.table.revise(
                    signature.key_of(token),
                    duration_ns,
                    source,
                    self.drag_permille(kind, fields, duration_ns, bound_by),
                )
            self._tell_times(self.awaiting.take(token))
        if revised:
            self.table.announce()

    def _host(self, client: Client, message: list) -> None:
        _, _, client.clock_ns, costs = message
        if self.recorder is not None:
            try:
                self.recorder.host(costs, client.leads)
            except DatabaseError as error:
                raise BadMessage(str(error)) from None

    def _note(self, client: Client, message: list) -> None:
        _, _, client.clock_ns, what, text = message
        counter = self.notes.get(what)
        if counter is None:
            raise BadMessage(f"unknown note {what!r}")
        if text in counter or len(counter) < MAX_NOTES:
            counter[text] += 1

    def _bye(self, client: Client, message: list) -> None:
        client.clock_ns = message[2]
        self._leave(client)

    # ---- answers ----

    def settle(self) -> None:
        """Brings times up to date and releases every answer that is final."""
        try:
            self.graph.run()
            if self.waiting or self.awaiting:
                self._release()
            while self.awaiting and self._unblock():
                pass
            if self.fetches:
                for client, text in self.fetches.hopeless(self.everyone):
                    self._fail(text, [client.number])
        except Exception:  # ours: no message is to blame any more
            self._internal_error()
        if self.messages >= self._next_commit:
            self._next_commit = self.messages + COMMIT_EVERY
            self.commit()

    def commit(self) -> None:
        """Drops history that nobody can change any more. A client that died without a word must not
        hold it back."""
        for client in list(self.clients.values()):
            if client.page.owner() is None:
                self._leave(client)
        bound_ns = horizon.commit_bound_ns(self.clients.values())
        if bound_ns is not None and not (
            self.optimistic and horizon.anchors_may_move(self.clients.values(), bound_ns)
        ):
            self.graph.commit(bound_ns)

    def hold_ms(self) -> int | None:
        """How long to wait for messages: until the next look at clocks while answers are held back,
        else until samples must be written, if there are any, else for ever."""
        if self._held or self.awaiting:
            return horizon.HELD_POLL_MS if self._held else POLL_MS
        flush_ms = FLUSH_MS if self.recorder is not None and self.recorder.open else None
        if self.fetches:
            look_ms = round(1000 * LOOK_S)
            return look_ms if flush_ms is None else min(look_ms, flush_ms)
        return flush_ms

    def _release(self) -> None:
        kept = []
        known = []
        for request in self.waiting:
            if request.number in request.client.pending:
                settled_ns = request.settled_ns()
                if settled_ns is None:
                    kept.append(request)
                elif self.optimistic and request.early:
                    self._answer(request, request.reply())
                else:
                    known.append((settled_ns, request))
        needed_ns = 0
        if known:  # else nobody's clock matters yet
            lbts_ns = horizon.lower_bound_ns(self.clients.values())
            for settled_ns, request in known:
                if lbts_ns is None or settled_ns <= lbts_ns:
                    self._answer(request, request.reply(lbts_ns))
                else:
                    needed_ns = max(needed_ns, settled_ns)
                    kept.append(request)
        self.waiting = kept
        self._held = needed_ns > 0
        if self.awaiting:  # then whoever is blocked matters, wherever its clock is
            needed_ns = protocol.MAX_TIME_NS
        if needed_ns and time.monotonic() - self._sampled >= horizon.SAMPLE_MS / 1000:
            self._sampled = time.monotonic()
            for client in horizon.sample_idle(self.clients.values(), needed_ns):
                self._leave(client)

    def _unblock(self) -> bool:
        """Lets somebody go on when all are stuck over held LOOKUPs; whether somebody does."""
        if not self.awaiting.expected(self.clients.values()):
            self._tell_times(self.awaiting.take_all(), estimated=True)
            return False
        if not self.awaiting.stuck(self.everyone):
            return False
        before = len(self.outbox)
        self.awaiting.waive(True)
        self._release()
        self.awaiting.waive(False)
        if len(self.outbox) == before:
            self._tell_times(self.awaiting.take_first(), estimated=True)
        return len(self.outbox) > before

    def _deliver(self, waiter: Waiter) -> None:
        client, number = waiter.client, waiter.number
        client.still = 0
        if client.fetching == number:
            client.fetching = None
        self.fetches.close(waiter)
        if not client.gone and client.failure is None:
            self._send(
                client.identity, [protocol.FETCH, number, waiter.result(), int(waiter.unknown())]
            )
        self.communicators.delivered(waiter)

    def _answer(self, request: Request, reply: list) -> None:
        if request.client.pending.pop(request.number, None) is not None:
            request.client.still = 0
            self._send(request.client.identity, reply)

    def _refuse(self, identity: bytes, number: int, text: str) -> None:
        client = self.clients.get(identity)
        if client is not None:
            client.pending.pop(number, None)
        self._send(identity, [protocol.ERROR, number, text])

    def _send(self, identity: bytes, reply: list) -> None:
        self.outbox.append((identity, reply))

    def _internal_error(self) -> None:
        """A defect of the hub. Times may be wrong from here on, so the job is told and ends,
        instead of hanging."""
        self.internal_errors += 1
        if self.internal_errors == 1:
            traceback.print_exc()
            self._fail(INTERNAL, range(len(self.everyone)))

    def _fail(self, text: str, members: Iterable[int]) -> None:
        """Says once what is wrong, and fails what these clients wait for and will ask, instead of
        letting them hang."""
        if text not in self.errors:
            self.errors.append(text)
            print(f"phantora-ns: {text}", file=sys.stderr, flush=True)
        for number in members:
            client = self.everyone[number]
            if client.gone or client.failure is not None:
                continue
            client.failure = text
            for request in [*client.pending, *client.fetches]:
                self._refuse(client.identity, request, text)

    def _leave(self, client: Client) -> None:
        del self.clients[client.identity]
        self.communicators.depart(client)
        client.leave()
