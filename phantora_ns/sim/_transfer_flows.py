"""The transfers in progress, and their flows in the flow simulator.

Why it exists: the end of communication over shared links is not a maximum over earlier vertices.
The flow simulator decides it, and revises it when a later report adds a flow that met it.
"""

from __future__ import annotations

from collections.abc import Iterator

from phantora_ns.sim._transfers import Transfer
from phantora_ns.sim._vertices import LATEST_NS
from phantora_ns.sim._work_queue import WorkQueue
from phantora_ns.sim.flows import Flow, FlowSimulator


class TransferFlows:
    """Starts, moves and ends transfers. `committed_ns`: nothing before it can change any more.

    The flow simulator's time never goes back, but processes that come after all others have ended begin
    at 0 (`begin_anew`). So each transfer has a shift: what the flow simulator's time is ahead of its own.
    """

    def __init__(self, flows: FlowSimulator, queue: WorkQueue) -> None:
        self._flows = flows
        self._queue = queue
        self._owners: dict[Flow, Transfer] = {}
        self._shift_ns = 0
        self.committed_ns = 0
        self.disturbed = False
        """Flows have been added or moved since `collect_moves`."""
        self.retimed = 0
        """Transfers whose end moved after it had been computed."""
        self.late = 0
        """Transfers that started, or moved, before the committed horizon. Their flows start on the
        horizon, or stay."""

    def start(self, transfer: Transfer) -> tuple[int, int] | None:
        """Places the flows of a transfer whose start is known, or has moved. Returns its end as
        `end` does when it shares no link; otherwise the queue will ask for the end."""
        start_ns, settled_ns = transfer.reach()
        course = transfer.course
        assert course is not None
        if course.shared is None:
            transfer.start_ns = start_ns
            return self.end(transfer, settled_ns)
        if start_ns == transfer.start_ns:
            return None
        transfer.start_ns = start_ns
        if transfer.flow is None:
            transfer.shift_ns = self._shift_ns
        flows_ns = min(start_ns + course.before_ns, LATEST_NS) + transfer.shift_ns
        committed_ns = self._flows_committed_ns
        frozen = transfer.flow is not None and transfer.flows_ns < committed_ns
        if frozen or flows_ns < committed_ns:
            self.late += 1
            if frozen:
                return None
            flows_ns = committed_ns
        transfer.flows_ns = flows_ns
        if transfer.flow is None:
            transfer.flow = self._flows.add_group(flows_ns, course.shared)
            self._owners[transfer.flow] = transfer
        else:
            self._flows.move(transfer.flow, flows_ns)
        self.disturbed = True
        self._queue.complete(transfer, flows_ns - transfer.shift_ns + course.estimate_ns)
        return None

    def end(self, transfer: Transfer, settled_ns: int = 0) -> tuple[int, int]:
        """(time_ns, settled_ns) of a started transfer. `settled_ns` is that of its ancestors; it is
        used when the transfer shares no link."""
        course = transfer.course
        assert course is not None and transfer.start_ns is not None
        end_ns = transfer.start_ns + course.before_ns + course.private_ns
        if course.shared is not None:
            assert transfer.flow is not None
            flows_end_ns = self._flows.completion_ns(transfer.flow) - transfer.shift_ns
            end_ns = max(end_ns, flows_end_ns)
            settled_ns = flows_end_ns + 1
        return max(end_ns + course.after_ns, transfer.start_ns + 1, settled_ns), settled_ns

    def collect_moves(self) -> None:
        """Asks the flow simulator which completions it has revised, and queues their transfers."""
        self.disturbed = False
        for flow, completion_ns in self._flows.changed().items():
            transfer = self._owners.get(flow)
            if transfer is None:  # dropped under way
                continue
            if transfer.completion_queued is None and transfer.time_ns is not None:
                assert transfer.settled_ns is not None
                self.retimed += 1
                end_ns = completion_ns - transfer.shift_ns
                self._queue.complete(transfer, min(transfer.settled_ns, end_ns))

    def commit(self, before_ns: int) -> None:
        """Nothing will start before `before_ns` any more."""
        self.committed_ns = before_ns
        self._flows.commit(self._flows_committed_ns)

    @property
    def _flows_committed_ns(self) -> int:
        """`committed_ns` in the flow simulator's time."""
        return self.committed_ns + self._shift_ns

    def begin_anew(self) -> None:
        """New communication begins at time 0 again. Flows that have not ended go on, and share the links with it."""
        self._shift_ns = self._flows_committed_ns
        self.committed_ns = 0

    def release(self, transfer: Transfer) -> None:
        """Drops the flows and the history of a transfer whose end is final."""
        if transfer.flow is not None:
            del self._owners[transfer.flow]
            transfer.flow = None
        transfer.retire()

    def drop(self, transfer: Transfer, from_ns: int) -> None:
        """Drops a transfer all of whose members have ended. Flows that start at `from_ns` or later
        are withdrawn, so that they slow nobody down. Others stay, and end as they do."""
        flow = transfer.flow
        self.release(transfer)
        from_ns = max(from_ns + transfer.shift_ns, self._flows_committed_ns)
        if flow is not None and transfer.flows_ns >= from_ns:
            self._flows.withdraw(flow)
            self.disturbed = True

    def under_way(self) -> Iterator[tuple[Flow, Transfer]]:
        """Each flow with the transfer that it belongs to."""
        return iter(self._owners.items())
