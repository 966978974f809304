"""What a step of the job does, as the user says it: `--work '16*8192 tokens'`, `--model-flop '6*8e9 * 16*8192'`.

Why it exists: people compare tokens a second, and how many tokens a step has, counted once over all ranks,
only the user knows. The job's tensors do not tell: ranks of one tensor- or pipeline-parallel group read the
same batch, an embedding that is split over ranks gets masked indices, and labels look like inputs. Nor do
kernels tell how much of their arithmetic the model needs and how much is recomputed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from phantora_ns.launch.errors import UsageError

_FORM = re.compile(r"\s*([^*\s]+(?:\s*\*\s*[^*\s]+)*)\s+([A-Za-z][\w-]*)\s*")
_PLUS = re.compile(r"(?<![0-9.][eE])\+")  # not that of 1e+9


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
        amount = _product(found[1]) if found else 0.0
    except ValueError:
        amount = 0.0
    if found is None or not (0 < amount < math.inf):
        raise UsageError(
            f"--work: {text!r} is no amount with a unit; on the command line; write it as '16*8192 tokens'"
        )
    return Work(amount, found[2])


def parse_model_flop(text: str) -> float:
    """Numbers with `*` and `+` between them. Raises UsageError.

    >>> parse_model_flop("6*1e9 * 1000 + 12*2*64 * 1000")
    6000001536000.0
    """
    try:
        flop = math.fsum(map(_product, _PLUS.split(text)))
    except (ValueError, OverflowError):
        flop = 0.0
    if not (0 < flop < math.inf):
        raise UsageError(
            f"--model-flop: {text!r} is no amount of FLOP; on the command line; "
            "write it as '6 * 8.03e9 * 16*8192', with * and + alone"
        )
    return flop


def _product(text: str) -> float:
    return math.prod(float(factor) for factor in text.split("*"))
