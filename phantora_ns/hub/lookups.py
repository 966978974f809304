"""Kernel times for ranks, and measurements from leaders.

Why it exists: databases and models answer a LOOKUP, unless a leader may be about to measure the
kernel (awaiting.py). Every answer also goes into the kernel table, where all ranks find it without
asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol

from phantora_ns.hub.answers import Answers
from phantora_ns.hub.awaiting import Awaiting, Held
from phantora_ns.hub.kernel_table import KernelTable
from phantora_ns.hub.decoding import BadMessage
from phantora_ns.hub.messages import Lookup, Measurement
from phantora_ns.hub.recorder import Recorder
from phantora_ns.hub.registry import Client
from phantora_ns.kernels import families, flop, graph_forms, signature
from phantora_ns.kernels.library_versions import LibraryVersions
from phantora_ns.kernels.live_times import Learned
from phantora_ns.protocol import Message, SignatureKind, Source, SourceFlag

Fields = list[Any]


class Durations(Protocol):
    """What the hub asks of kernels.lookup.KernelTimes."""

    scaled: int
    versions: LibraryVersions | None
    other_versions: set[LibraryVersions]
    renamed: int
    scaled_from: str | None
    unmeasured: bool

    def lookup(
        self, kind: int, fields: Fields, context: Any = None, parameters: bytes | None = None
    ) -> tuple[int, int, int]: ...

    def recorded_elsewhere(self, kind: int, fields: Fields) -> bool: ...

    def measured(self, kind: int, fields: Fields) -> bool: ...

    def learn(self, kind: int, fields: Fields, durations_ns: list[int]) -> Learned: ...


class KernelModels(NamedTuple):
    """What is known of kernels on the simulated GPU model.

    `contention_permille(kind, fields, bound_by)`: how much longer a kernel takes when communication
    overlaps it. `queue_slots(kind, fields)`: how many slots of the launch queue it takes.
    """

    times: Durations
    contention_permille: Callable[[int, Fields, int], int]
    queue_slots: Callable[[int, Fields], int]


class Lookups:
    """Answers LOOKUP and takes MEASURED. `recorder`: None when no leader records in this run."""

    def __init__(
        self,
        models: KernelModels,
        table: KernelTable,
        awaiting: Awaiting,
        recorder: Recorder | None,
        answers: Answers,
    ) -> None:
        self.models = models
        self.table = table
        self.awaiting = awaiting
        self.recorder = recorder
        self._answers = answers
        self.uncounted: set[str] = set()
        """Names of kernels that multiply, or may, and of which nobody knows how much."""
        self._led: dict[int, tuple[int, Fields]] = {}
        """What a leader has measured that no database holds, by the key in the table."""

    def look_up(self, request: Held, others: Collection[Client]) -> None:
        """Answers a LOOKUP, at once or when the kernel has been measured. `others`: all clients that
        have not left."""
        client, token = request.client, request.token
        if self.awaiting.leader is not None and not self.models.times.measured(*request.signature):
            if client.measures:  # it has just failed to measure the kernel
                self.awaiting.give_up(token)
                self.estimate(self.awaiting.take(token))
            elif self.awaiting.expected(others) and self.awaiting.hold(request):
                return
        client.pending[request.number] = request
        self._answer([request], waited=False)

    def estimate(self, requests: Iterable[Held]) -> None:
        """Answers LOOKUPs for which no measurement came."""
        self._answer(requests, waited=True)

    def take_measured(self, client: Client, items: list[Measurement]) -> None:
        """Takes a leader's measurements: records them, revises the table, and answers the LOOKUPs
        that wait for them. Raises BadMessage, SignatureError."""
        if not client.leads:
            raise BadMessage("only a leader measures")
        revised = False
        for item in items:
            kind, fields, durations_ns = item.kind, item.fields, item.durations_ns
            token = signature.encode(kind, fields)
            if not durations_ns:
                self.awaiting.give_up(token)
                self.estimate(self.awaiting.take(token))
                continue
            if kind == SignatureKind.CUDNN:
                fields = graph_forms.plain_fields(fields)
            if self.recorder is not None:
                self.recorder.measured(kind, fields, item.context, durations_ns)
            learned = self.models.times.learn(kind, fields, durations_ns)
            if learned is Learned.THIS:
                self._led[signature.key_of(token)] = kind, fields
                revised |= self._revise(kind, fields, signature.key_of(token))
            elif learned is Learned.ALL:
                for key, led in self._led.items():
                    revised |= self._revise(*led, key)
            self._answer(self.awaiting.take(token), waited=False)
        if revised:
            self.table.announce()

    def _answer(self, requests: Iterable[Held], waited: bool) -> None:
        """Answers LOOKUPs with what is known now. `waited`: they waited, but no measurement came."""
        for request in requests:
            kind, fields = request.signature
            duration_ns, source, bound_by = self.models.times.lookup(kind, fields, *request.rest)
            contention_permille = self.models.contention_permille(kind, fields, bound_by)
            queue_slots = self.models.queue_slots(kind, fields)
            elsewhere = self.models.times.recorded_elsewhere(kind, fields)
            flagged = source | (SourceFlag.ELSEWHERE if elsewhere else 0)
            work = bound_by | families.kernel_class(kind, fields, request.rest[0]) << 8
            counted = flop.work_of(kind, fields, request.rest[0])
            work |= counted.precision << 16 | counted.halved << 24
            if counted == flop.UNCOUNTED:
                self.uncounted.add(flop.named(kind, fields))
            entry = [duration_ns, flagged, contention_permille, work, queue_slots, counted.flop]
            self.table.put(request.key, *entry)
            if self.awaiting.leader is not None and source != Source.EXACT:
                self.awaiting.answer_without(request, waited)
            self._answers.answer(request, [Message.LOOKUP, request.number, *entry])

    def _revise(self, kind: int, fields: Fields, key: int) -> bool:
        duration_ns, source, bound_by = self.models.times.lookup(kind, fields)
        permille = self.models.contention_permille(kind, fields, bound_by)
        return self.table.revise(key, duration_ns, source, permille)


def parse_lookup(client: Client, message: Lookup) -> Held:
    """The request of a LOOKUP. Raises BadMessage, SignatureError."""
    client.clock_ns, key = message.clock, message.key
    kind, fields = message.kind, message.fields
    if not 0 < key < 1 << 64:
        raise BadMessage("a signature's key is 64 bits and not zero")
    context = parameters = None
    if kind == SignatureKind.KERNEL and len(fields) == 14:
        *fields, context, parameters = fields
    token = signature.encode(kind, fields)
    if kind == SignatureKind.CUDNN:
        fields = graph_forms.plain_fields(fields)
    return Held(client, message.request, key, token, (kind, fields), (context, parameters))
