"""One operation of a communicator as a rank issues it; docs/wire-protocol.md has the numbers.

Why it exists: matching, values and error messages all need a description of an operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phantora_ns.protocol import Collective, DataType, Reduction

SEND, RECV = Collective.SEND, Collective.RECV
ROOTED = frozenset((Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER))
FROM_ROOT = frozenset((Collective.BROADCAST, Collective.SCATTER))
"""Operations whose data are the root's alone."""
REDUCING = frozenset((Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE))
MAX_BYTES = 1 << 56


class Op(NamedTuple):
    """One operation as a rank issues it; the fields are those of OPS in docs/wire-protocol.md."""

    kind: int
    count_bytes: int
    dtype: int
    redop: int
    peer: int

    def describe(self) -> str:
        """The operation for a person: kind, size and data type. It may be one that nobody could run."""
        words = [
            _label(Collective.LABELS, self.kind, "collective"),
            f"{self.count_bytes} bytes",
            _label(DataType.LABELS, self.dtype, "dtype"),
        ]
        if self.kind in REDUCING:
            words.append(_label(Reduction.LABELS, self.redop, "redop"))
        if self.kind in ROOTED:
            words.append(f"root {self.peer}")
        return f"{words[0]}({', '.join(words[1:])})"


def _label(labels: Sequence[str], number: int, what: str) -> str:
    return labels[number] if 0 <= number < len(labels) else f"{what} {number}"


class Mismatch(ValueError):
    """Members of a communicator disagree about an operation. The text names them and the operation
    that each asked for."""


class BadOp(ValueError):
    """An operation that no communicator could run: an unknown kind, a negative size, or a peer that
    is not a member."""


class Load(NamedTuple):
    """The point-to-point traffic of one rank's launch: (messages, bytes) sent to and received from
    other ranks, and the ranks that it names, including itself. The load decides the rate of each of
    its messages."""

    sent: tuple[int, int]
    received: tuple[int, int]
    ranks: frozenset[int]


def load_of(rank: int, ops: Sequence[Op]) -> Load | None:
    """The load of a launch of `rank`; None when it has no sends or receives. O(ops)."""
    pairs = [op for op in ops if op.kind >= SEND]
    if not pairs:
        return None
    sizes = {
        kind: [op.count_bytes for op in pairs if op.kind == kind and op.peer != rank]
        for kind in (SEND, RECV)
    }
    sent, received = ((len(found), sum(found)) for found in (sizes[SEND], sizes[RECV]))
    return Load(sent, received, frozenset((rank, *(op.peer for op in pairs))))
