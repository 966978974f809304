"""Which ranks of a folded job run, and which ranks they stand for.

Why it exists: launcher, hub and report must agree about it, and so must the interceptor
(libintercept/base/absent.c). Rule: only arithmetic on rank numbers; docs/folding.md says why it is
right.

Ranks are numbered in blocks of `block`, one after another. Within a block the job repeats itself
every `period` ranks: ranks whose places differ by a multiple of it are one class, and its members are
numbered from 0 in the order of their ranks. The first two and the last two members run. Member 1 is the
representative: it stands for all members that do not run, the absent ones. The others are its
witnesses. The first and the last are where jobs do what other ranks do not (logging, checkpoints), so
no absent rank is taken for one of them. The one before the last is as far from the representative as an
absent rank can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

REPRESENTATIVE = 1
"""The member of a class that stands for the absent ones."""
FEWEST_MEMBERS = 5
"""With fewer, every member runs."""


@dataclass(frozen=True)
class Fold:
    """How a job of `world` ranks is folded. Raises ValueError, with what is wrong, when `world` is
    not a multiple of `block`, or `block` of `period`, or when no rank would be absent."""

    period: int
    block: int
    world: int

    def __post_init__(self) -> None:
        if self.period < 1 or self.block < 1 or self.world % self.block or self.block % self.period:
            raise ValueError(
                f"{self.world} ranks do not consist of blocks of {self.block} that repeat every "
                f"{self.period} ranks"
            )
        if self.members < FEWEST_MEMBERS:
            raise ValueError(
                f"every {self.period}th rank of {self.block} makes classes of {self.members}, and "
                f"only from {FEWEST_MEMBERS} members on is one absent"
            )

    @property
    def members(self) -> int:
        """Members of each class."""
        return self.block // self.period

    @property
    def running(self) -> int:
        """How many ranks run."""
        return self.world // self.members * (FEWEST_MEMBERS - 1)

    def member(self, rank: int) -> int:
        """The number of a rank within its class."""
        return rank % self.block // self.period

    def at(self, rank: int, member: int) -> int:
        """The member of that number in the class of `rank`."""
        return rank + (member - self.member(rank)) * self.period

    def runs(self, rank: int) -> bool:
        """Whether a rank runs."""
        return self.member(rank) not in self.absent_members()

    def representative(self, rank: int) -> int:
        """The representative of the class of `rank`."""
        return self.at(rank, REPRESENTATIVE)

    def absent_members(self) -> range:
        """The numbers of the members that do not run."""
        return range(REPRESENTATIVE + 1, self.members - 2)

    def witnesses(self, rank: int) -> tuple[int, ...]:
        """The members of the class of `rank` that run beside the representative."""
        return tuple(self.at(rank, member) for member in (0, self.members - 2, self.members - 1))

    def whole(self, ranks: Iterable[int]) -> list[int]:
        """All members of the classes of `ranks`, in the order of their numbers."""
        first = {self.at(rank, 0) for rank in ranks}
        return sorted(self.at(rank, member) for rank in first for member in range(self.members))

    def describe(self) -> dict[str, int]:
        """The numbers, for run.json."""
        return {"period": self.period, "block": self.block, "world": self.world}
