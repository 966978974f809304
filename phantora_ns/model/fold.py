"""Which ranks of a folded job run, and which ranks they stand for.

Why it exists: launcher, hub and report must agree about it, and so must the interceptor
(libintercept/base/absent.c). Rule: only arithmetic on rank numbers; docs/folding.md says why it is
right.

Ranks are numbered in blocks of `block`, one after another. Within a block the job repeats itself
every `period` ranks: ranks whose places differ by a multiple of it are one class, and its members are
numbered from 0 in the order of their ranks. The first two members run, and the last two, or none of
these where memory is short. Member 1 is the representative: it stands for all members that do not run,
the absent ones. The others are its witnesses. The first and the last are where jobs do what other ranks
do not (logging, checkpoints), so no absent rank is taken for one of them while both run. The one before
the last is as far from the representative as an absent rank can be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

REPRESENTATIVE = 1
"""The member of a class that stands for the absent ones."""
FIRST = 2
"""Members that run, from the first on: NCCL's identifiers come from the first."""
LAST = 2
"""Members that run, to the last one, unless fewer witnesses are asked for."""


@dataclass(frozen=True)
class Fold:
    """How a job of `world` ranks is folded. `last`: how many of each class's last members run, `LAST` or
    0. Raises ValueError, with what is wrong, when `world` is not a multiple of `block`, or `block` of
    `period`, or when no rank would be absent."""

    period: int
    block: int
    world: int
    last: int = LAST

    def __post_init__(self) -> None:
        if self.period < 1 or self.block < 1 or self.world % self.block or self.block % self.period:
            raise ValueError(
                f"{self.world} ranks do not consist of blocks of {self.block} that repeat every "
                f"{self.period} ranks"
            )
        fewest = FIRST + self.last + 1
        if self.members < fewest:
            raise ValueError(
                f"every {self.period}th rank of {self.block} makes classes of {self.members}, and "
                f"only from {fewest} members on is one absent"
            )

    @property
    def members(self) -> int:
        """Members of each class."""
        return self.block // self.period

    @property
    def running(self) -> int:
        """How many ranks run."""
        return self.world // self.members * (FIRST + self.last)

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
        return range(FIRST, self.members - self.last)

    def witnesses(self, rank: int) -> tuple[int, ...]:
        """The members of the class of `rank` that run beside the representative."""
        beside = (0, *range(self.members - self.last, self.members))
        return tuple(self.at(rank, member) for member in beside)

    def deciding(self, rank: int) -> int | None:
        """Which witness of the class of `rank` must agree with the representative to the end: the last but
        one; without the last members the first. None for the class of rank 0, which may log, then."""
        number = self.members - LAST if self.last else 0
        return self.at(rank, number) or None

    def whole(self, ranks: Iterable[int]) -> list[int]:
        """All members of the classes of `ranks`, in the order of their numbers."""
        first = {self.at(rank, 0) for rank in ranks}
        return sorted(self.at(rank, member) for rank in first for member in range(self.members))

    def describe(self) -> dict[str, int]:
        """The numbers, for run.json."""
        return asdict(self)
