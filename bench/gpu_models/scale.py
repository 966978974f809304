"""What another GPU model's times change by, from what both models recorded.

    python -m bench.gpu_models.scale [--gpu h100]

Why it exists: `[efficiency.scaled]` of a GPU's file says which share of the difference of the two models'
estimates counts for signatures that only the other model recorded, and `[efficiency.scaled_kernels]` the same
for kernels of one function. This prints, by kind of signature and what bounds it, the share of the least mean
error, and the errors with it and with all of the difference; then the second table: the functions of which there
are enough, and which their own share describes clearly better. Times of both models are those at the usual clock.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from statistics import mean
from typing import Any, NamedTuple

from phantora_ns.kernels.binary import names
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import alike, shipped_path
from phantora_ns.kernels.fitted.predictor import difference_ns
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import BoundBy, SignatureKind, Source

LEAST = 15
SHARES = [step / 20 for step in range(25)]


ENOUGH = 12
"""Kernels of one function, whose times are expected to differ by at least `SAYS`, for a share of its own."""
SAYS = 0.03
BETTER = 0.7
"""A function's own share must have at most this part of the error that the general one has."""
LONGEST = 60
"""Of a function's name: longer ones hold template arguments."""


class Pair(NamedTuple):
    """A signature that both have recorded: the other model's time, how much longer it is here by the estimates,
    and this model's own time, in ns; `function` is "" where it is no kernel."""

    its_ns: float
    more_ns: float
    own_ns: float
    kind: int
    bound_by: int
    function: str


def pairs(gpu: str, other: str) -> list[Pair]:
    own, there = KernelTimes(gpu, [shipped_path(gpu)]), KernelTimes(other, [shipped_path(other)])
    found = []
    with Database.open(shipped_path(gpu)) as database:
        for one in database.observations():
            work = one.kind, one.fields, one.context
            its_ns, source, bound_by = there.lookup(*work)
            if source not in (Source.EXACT, Source.LAUNCH):
                continue
            estimates = (times.estimate(*work).duration_ns for times in (own, there))
            more_ns = difference_ns(its_ns, *estimates)
            function = names.parse(one.fields[0]).base if one.kind == SignatureKind.KERNEL else ""
            found.append(Pair(its_ns, more_ns, own.lookup(*work)[0], one.kind, bound_by, function))
    return found


def grouped(found: list[Pair], key: Callable[[Pair], Any]) -> dict[Any, list[Pair]]:
    groups = defaultdict(list)
    for pair in found:
        groups[key(pair)].append(pair)
    return dict(sorted(groups.items()))


def error(rows: list[Pair], share: float) -> float:
    return mean(abs(math.log((row.its_ns + share * row.more_ns) / row.own_ns)) for row in rows)


def best(rows: list[Pair]) -> float:
    return min(SHARES, key=lambda share: error(rows, share))


def functions(found: list[Pair]) -> dict[str, str]:
    """Lines of `[efficiency.scaled_kernels]`, by function; the errors beside are with the line and without."""
    telling = [pair for pair in found if abs(pair.more_ns) > SAYS * pair.its_ns]
    general = {kind: best(rows) for kind, rows in grouped(found, lambda p: p[3:5]).items()}
    lines = {}
    for name, rows in grouped(telling, lambda p: p.function).items():
        if not name or len(rows) < ENOUGH or len(name) > LONGEST:
            continue
        share = best(rows)
        without = mean(error([row], general[row[3:5]]) for row in rows)
        if error(rows, share) <= BETTER * without:
            with_it = error(rows, share)
            lines[name] = f'{name} = "{share:.0%}"  # {len(rows)}: {with_it:.1%}; {without:.1%}'
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h100")
    gpu = parser.parse_args().gpu
    other = alike(gpu)
    assert other is not None
    found = pairs(gpu, other)
    lines = functions(found)
    print(
        f"{len(found)} signatures of both; those of functions with a line of their own are left out:"
    )
    rest = [pair for pair in found if pair.function not in lines]
    for (kind, bound_by), rows in grouped(rest, lambda p: p[3:5]).items():
        if len(rows) >= LEAST:
            share = best(rows)
            print(
                f"{SignatureKind.LABELS[kind]}_{BoundBy.LABELS[bound_by]}: {len(rows)}, share {share:.0%}, "
                f"error {error(rows, share):.1%}; with all {error(rows, 1.0):.1%}, as the other's "
                f"{error(rows, 0.0):.1%}"
            )
    print("\n".join(lines.values()))


if __name__ == "__main__":
    main()
