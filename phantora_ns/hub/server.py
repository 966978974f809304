"""The hub: it takes messages, and answers what can be answered.

Why it exists: every process of the job talks to this one. A message is checked (decoding.py) and
goes to its handler (handlers.py), which enters it into the event graph (sim/graph.py). Answers are
sent when they are final (releases.py). Rule: the hub survives whatever a client sends. An invalid
message is counted. If it is a request, it is answered with an error.

The hub has no socket. `handle` takes a message, `settle` ends a batch, and loop.py sends the result
of `take_outbox`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora_ns.hub import decoding
from phantora_ns.hub.answers import INTERNAL, Answers
from phantora_ns.hub.awaiting import Awaiting
from phantora_ns.hub.clients import Clients, Refused
from phantora_ns.hub.communicators import Communicators, JobError
from phantora_ns.hub.deaths import Deaths
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.diagnostics import Diagnostics
from phantora_ns.hub.fetches import Fetches
from phantora_ns.hub.folding import CannotFold, Folding
from phantora_ns.hub.handlers import CommunicatorHandlers, OtherHandlers, TimeHandlers
from phantora_ns.hub.hang import Hang
from phantora_ns.hub.kernel_table import CAPACITY, KernelTable
from phantora_ns.hub.lookups import KernelModels, Lookups
from phantora_ns.hub.messages import Hello, Query
from phantora_ns.hub.messages import Request as ClientRequest
from phantora_ns.hub.nccl_release import NcclRelease
from phantora_ns.hub.profiles import Profiles
from phantora_ns.hub.recorder import Recorder
from phantora_ns.hub.registry import Client
from phantora_ns.hub.releases import Releases
from phantora_ns.hub.stillness import Stillness
from phantora_ns.hub.trace_times import TraceTimes
from phantora_ns.kernels.database.schema import DatabaseError
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.model.fold import Fold
from phantora_ns.model.nccl import NcclVersion
from phantora_ns.protocol import KERNEL_TABLE_FILE, Message
from phantora_ns.sim.graph import BadExpression, BadOp, EventGraph

COMMIT_EVERY = 4096
"""Least number of messages between two commits. History in between is small."""
COMMIT_EVERY_RANKS = 16
"""Least number of messages for each rank, because a commit looks at every rank."""

MAX_COMPLAINT = 500
"""Most characters that are kept of a complaint about a message: it may quote the message."""
OVERRUN = (
    "simulated time has passed 36 years; in the job; a rank reported a duration that is no duration"
)


@dataclass(frozen=True)
class HubOptions:
    """Settings of a run's hub. `nodes`, `gpus_per_node`: the cluster's size. `leader`: the rank that
    is to lead, None without one. `config` is sent to every client. `fold`: which ranks do not run;
    None: all run. `per_node` is then the number of ranks of a node."""

    nodes: int
    gpus_per_node: int
    optimistic: bool = False
    leader: int | None = None
    table_capacity: int = CAPACITY
    config: dict[str, Any] = field(default_factory=dict)
    fold: Fold | None = None
    per_node: int = 1
    multiprocessors: int = 1
    """Of a GPU."""


class Hub:
    """All state of a run; each part has its own class."""

    def __init__(
        self,
        run_dir: Path,
        graph: EventGraph,
        models: KernelModels,
        options: HubOptions,
        recorder: Recorder | None = None,
        choose_nccl: Callable[[NcclVersion], None] = lambda known: None,
    ) -> None:
        self.graph = graph
        self.options = options
        self.diagnostics = Diagnostics()
        self.nccl = NcclRelease(self.diagnostics, choose_nccl)
        self.folding: Folding | None = None
        if options.fold is not None:
            self.folding = Folding(options.fold, options.per_node, graph)
        self.communicators = Communicators(
            graph, options.nodes, options.gpus_per_node, self.nccl, self.folding
        )
        self.clients = Clients(run_dir, graph, self.communicators, self.folding)
        self.answers = Answers(self.clients, self.diagnostics)
        self.deaths = Deaths(run_dir, self.diagnostics.killed.append)
        self.fetches = Fetches()
        self.lookups = Lookups(
            models,
            KernelTable(run_dir / KERNEL_TABLE_FILE, options.table_capacity),
            Awaiting(run_dir, options.leader),
            recorder,
            self.answers,
        )
        self.releases = Releases(
            graph,
            self.clients,
            self.answers,
            self.fetches,
            self.lookups,
            Stillness(self.diagnostics.warn),
            Hang(run_dir),
            options.optimistic,
        )
        self.traces: TraceTimes | None = None
        """Set before the first client comes, if the run is traced."""
        likeness = self.folding.likeness if self.folding is not None else None
        profiles = Profiles(run_dir, graph, options.multiprocessors)
        times = TimeHandlers(graph, self.releases, self.answers, profiles, likeness)
        communication = CommunicatorHandlers(
            self.communicators, times, self.releases, self.fetches, self.answers
        )
        others = OtherHandlers(self.clients, self.lookups, self.diagnostics)
        self._handlers = times.table() | communication.table() | others.table()
        self._next_commit = COMMIT_EVERY

    @property
    def recorder(self) -> Recorder | None:
        """Where measurements go; None when no leader records in this run."""
        return self.lookups.recorder

    def handle(self, identity: bytes, frame: bytes) -> None:
        """Takes one message. No content of a message raises an exception."""
        self.diagnostics.messages += 1
        client = self.clients.get(identity)
        request: int | None = None
        try:
            message = decoding.decode(frame)
            if isinstance(message, ClientRequest):
                request = message.request
            elif type(message) is Hello:
                self._hello(identity, client, message)
                return
            if client is None:
                raise BadMessage("no HELLO came first", request)
            watches = isinstance(message, Query) and not message.host_expression
            self._count(client, message.seq, request, watches)
            if client.failure is not None and request is not None:
                self.answers.refuse(client.identity, request, client.failure)
                return
            if request is not None and request in client.pending:
                raise BadMessage(f"request {request} is open already")
            if self.folding is not None:
                self.folding.take(client, message)
            self._handlers[type(message)](client, message)
        except (BadMessage, BadExpression, BadOp, SignatureError) as error:
            self._reject(identity, client, request, error)
        except JobError as error:
            self.answers.fail(str(error), error.members)
            if request is not None:
                self.answers.refuse(identity, request, str(error))
        except CannotFold as error:
            assert self.folding is not None
            self.folding.refusal = self.folding.refusal or str(error)
            self._fail_all(str(error))
            if request is not None:
                self.answers.refuse(identity, request, str(error))
        except DatabaseError as error:
            self._fail_all(str(error))
            if request is not None:
                self.answers.refuse(identity, request, str(error))
        except Exception:  # a defect of the hub, not of the client
            self.answers.internal_error()
            if request is not None:
                self.answers.refuse(identity, request, INTERNAL)

    def unreadable(self) -> None:
        """Counts input that is not a message at all."""
        self.diagnostics.messages += 1
        self.diagnostics.bad_messages += 1

    def settle(self, quiet: bool = True) -> None:
        """Ends a batch: releases every answer that is final, and regularly drops history. `quiet`: the
        batch had no message."""
        try:
            self.releases.settle(quiet)
            if self.graph.overrun:
                self._fail_all(OVERRUN)
        except DatabaseError as error:
            self._fail_all(str(error))
        except Exception:  # a defect of the hub: no message is responsible here
            self.answers.internal_error()
        if self.diagnostics.messages >= self._next_commit:
            every = max(COMMIT_EVERY, COMMIT_EVERY_RANKS * len(self.clients.numbered))
            self._next_commit = self.diagnostics.messages + every
            self.releases.commit()
            if self.folding is not None:
                self.folding.likeness.commit()

    def _fail_all(self, text: str) -> None:
        """Fails every client: no answer would mean anything."""
        self.answers.fail(text, range(len(self.clients.numbered)))

    def _hello(self, identity: bytes, client: Client | None, message: Hello) -> None:
        if client is not None or message.seq != 1:
            raise BadMessage("a second HELLO")
        try:
            client = self.clients.admit(identity, message.version, message.info)
        except Refused as error:
            self.answers.send(identity, [Message.HELLO, -1, {"error": str(error)}])
            raise
        self.deaths.watch(client)
        if self.traces is not None:
            self.traces.join(client.number, client.rank, message.info["shm"])
        if client.leads:
            self.lookups.awaiting.led.add(client.rank)
        self.answers.send(identity, [Message.HELLO, client.number, self.options.config])

    def _count(self, client: Client, seq: int, request: int | None, watches: bool) -> None:
        """Counts a message. `watches`: it comes from a thread that only watches and never acts."""
        expected = client.seq + 1
        client.messages += 1
        if not watches:
            client.fetching, client.parting = None, False
        if seq < expected:
            raise BadMessage(f"message {seq} came after message {client.seq}", request)
        client.seq = seq
        client.watches += watches
        if seq > expected:
            self.diagnostics.bad_messages += 1

    def _reject(
        self, identity: bytes, client: Client | None, request: int | None, error: ValueError
    ) -> None:
        """Counts an invalid message, and answers it if it is a request."""
        self.diagnostics.bad_messages += 1
        what = str(error)[:MAX_COMPLAINT]
        if isinstance(error, BadMessage):
            request = request if error.request is None else error.request
            if client is not None and error.seq == client.seq + 1:
                client.seq += 1
        if request is not None:
            before = ""
            if client is not None and client.complaint:
                before = f" (before that: {client.complaint})"
            self.answers.refuse(
                identity, request, f"the hub did not understand a message: {what}{before}"
            )
        if client is not None and client.complaint is None:
            client.complaint = what
