"""What a step of the job does, as the user says it: `--work '16*8192 tokens'`.

Why it exists: people compare tokens a second, and how many tokens a step has, counted once over all ranks,
only the user knows. The job's tensors do not tell: ranks of one tensor- or pipeline-parallel group read the
same batch, an embedding that is split over ranks gets masked indices, and labels look like inputs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from phantora_ns.launch.errors import UsageError

_FORM = re.compile(r"\s*([^*\s]+(?:\s*\*\s*[^*\s]+)*)\s+([A-Za-z][\w-]*)\s*")


@dataclass(frozen=True)
class Work:
    """`amount` units of it in a step of all ranks together."""

    amount: float
    unit: str


def parse_work(text: str) -> Work:
    """Numbers with `*` between them, and a unit. Raises UsageError.

    >>> parse_work("16*8192 tokens")
    Work(amount=131072.0, unit='tokens')
    """
    found = _FORM.fullmatch(text)
    try:
        amount = math.prod(float(factor) for factor in found[1].split("*")) if found else 0.0
    except ValueError:
        amount = 0.0
    if found is None or not (0 < amount < math.inf):
        raise UsageError(
            f"--work: {text!r} is no amount with a unit; on the command line; write it as '16*8192 tokens'"
        )
    return Work(amount, found[2])
