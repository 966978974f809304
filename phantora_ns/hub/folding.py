"""The ranks of a folded job that do not run (docs/folding.md).

Why it exists: an absent rank has a timeline of its own in the event graph, with its own links and
flows. Everything that its representative reports is entered there too, over the absent rank's own
vertices. So times differ where links do, and are equal where the cluster is symmetric. This part knows
who stands for whom, and which ranks a communicator holds when only some of them came to it.

A communicator of a folded job is one of two kinds. Either it holds whole classes, as the world does: then
absent ranks are members of it. Or it lies within one copy of the job's pattern: all its members have
the same number in their classes. Then each copy that does not run has one like it. Any other is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from phantora_ns.hub.likeness import Likeness
from phantora_ns.hub.messages import FromClient
from phantora_ns.hub.registry import Absent, Client
from phantora_ns.hub.witnesses import Witnesses
from phantora_ns.model.fold import REPRESENTATIVE, Fold
from phantora_ns.sim.graph import EventGraph

ADVICE = "use --fold off, or a longer period"


class CannotFold(Exception):
    """The job does something that folding has no rule for; the text says what."""


class Members(NamedTuple):
    """Who is in a communicator, by rank in it. `whole`: it holds whole classes."""

    seats: list[Client | Absent]
    whole: bool


class Folding:
    """Who stands for whom in one run. `per_node`: ranks of a node."""

    def __init__(self, fold: Fold, per_node: int, graph: EventGraph) -> None:
        self.fold = fold
        self._per_node = per_node
        self._graph = graph
        self.likeness = Likeness(graph)
        self.witnesses = Witnesses(fold)
        self.refusal: str | None = None
        """Why the job cannot be folded, once that is known."""

    def take(self, client: Client, message: FromClient) -> None:
        """Compares what a client reports with what ranks of its class do. Raises CannotFold."""
        said = self.witnesses.take(client, message)
        if said is not None:
            raise CannotFold(said)

    def finish(self) -> str | None:
        """The run has ended. Returns why it could not be folded, if that shows only now."""
        self.likeness.finish()
        said = None if self.refusal else self.witnesses.finish() or self._stuck()
        self.refusal = self.refusal or said
        return said

    def _stuck(self) -> str | None:
        """Why the job cannot be folded, when an absent rank never got where its representative did."""
        if not self.likeness.never:
            return None
        return (
            "this job cannot be folded: a rank that does not run would wait for ever for communication that "
            f"its representative does not wait for; in the job; {ADVICE}"
        )

    def describe(self) -> dict[str, Any]:
        """For hub.json; docs/report.md has the fields."""
        likeness = self.likeness
        return self.fold.describe() | {
            "answers": likeness.answers,
            "different_answers": likeness.different,
            "most_different_ns": likeness.most_ns,
            "refusal": self.refusal,
            **self.witnesses.describe(),
        }

    def takes_part(self, client: Client) -> bool:
        """Whether a client is a process of a rank of the folded job."""
        return 0 <= client.rank < self.fold.world

    def stand_in(self, client: Client) -> tuple[Absent, ...]:
        """The absent ranks that a new client stands for, each with a timeline of its own."""
        fold = self.fold
        if self.takes_part(client):
            self.witnesses.join(client)
        if not self.takes_part(client) or fold.member(client.rank) != REPRESENTATIVE:
            return ()
        ranks = (fold.at(client.rank, member) for member in fold.absent_members())
        return tuple(
            Absent(self._graph.add_client(), rank, rank // self._per_node, client) for rank in ranks
        )

    def fills(self, came: Mapping[int, Client], size: int) -> bool:
        """Whether these are all the running members of a communicator of `size` ranks, some of which
        are absent. `came`: members by rank in the communicator."""
        ranks = {client.rank for client in came.values()}
        if not all(0 <= rank < self.fold.world for rank in ranks):
            return False
        whole = self.fold.whole(ranks)
        return len(whole) == size and ranks == {rank for rank in whole if self.fold.runs(rank)}

    def members(self, came: Mapping[int, Client], size: int) -> Members:
        """Who is in a communicator to which all its running members have come. Raises CannotFold."""
        ranks = [client.rank for _, client in sorted(came.items())]
        if not all(map(self.takes_part, came.values())):
            if any(client.absent for client in came.values()):
                raise CannotFold(
                    f"a communicator of the ranks {_some(ranks)} holds a process that is no rank of the job, and "
                    f"ranks that do not run have none like it; {ADVICE}"
                )
            return Members([came[rank] for rank in sorted(came)], False)
        if len(came) < size:
            return Members(self._whole(came), True)
        numbers = {self.fold.member(rank) for rank in ranks}
        if REPRESENTATIVE in numbers and len(numbers) > 1:
            raise CannotFold(
                f"a communicator of the ranks {_some(ranks)} holds neither whole classes nor ranks of one "
                f"copy alone; {ADVICE}"
            )
        return Members([came[rank] for rank in range(size)], False)

    def part(self, came: Sequence[Client]) -> Members:
        """Who is in a part of a communicator of whole classes, when these are its members that run, in
        their order. Raises CannotFold."""
        ranks = [client.rank for client in came]
        if len({self.fold.member(rank) for rank in ranks}) == 1:
            return Members(list(came), False)
        whole = self.fold.whole(ranks)
        if ranks != [rank for rank in whole if self.fold.runs(rank)]:
            raise CannotFold(
                f"a communicator with the ranks {_some(ranks)} is split off, and which absent ranks it "
                f"holds is not known; {ADVICE}"
            )
        return Members(self._seats(came, whole), True)

    def _whole(self, came: Mapping[int, Client]) -> list[Client | Absent]:
        """The members of whole classes, in the order of their ranks. Raises CannotFold when those
        that came are numbered otherwise."""
        ranks = self.fold.whole(client.rank for client in came.values())
        if any(ranks[at] != client.rank for at, client in came.items()):
            raise CannotFold(
                f"a communicator of the ranks {_some(ranks)} does not number them in their order; "
                f"{ADVICE}"
            )
        return self._seats(came.values(), ranks)

    @staticmethod
    def _seats(came: Iterable[Client], ranks: Iterable[int]) -> list[Client | Absent]:
        """Clients and absent ranks, by the job's ranks."""
        known: dict[int, Client | Absent] = {}
        for client in came:
            known[client.rank] = client
            known |= {absent.rank: absent for absent in client.absent}
        return [known[rank] for rank in ranks]

    def moved(self, ranks: Sequence[int], at: int, absent: Absent) -> int:
        """In a communicator of these ranks, the place of the peer of `absent` when that of its
        representative is `at`: as far from it, around the class."""
        fold, peer = self.fold, ranks[at]
        by = fold.member(absent.rank) - REPRESENTATIVE
        return ranks.index(fold.at(peer, (fold.member(peer) + by) % fold.members))


def _some(ranks: Iterable[int], most: int = 8) -> str:
    named = list(ranks)
    return ", ".join(map(str, named[:most])) + (", ..." if len(named) > most else "")
