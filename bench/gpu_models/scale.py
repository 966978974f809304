"""What another GPU model's times change by, from what both models recorded.

    python -m bench.gpu_models.scale [--gpu h100]

Why it exists: `[efficiency.scaled]` of a GPU's file says which share of the difference of the two models'
estimates counts for signatures that only the other model recorded. This prints, by kind of signature and what
bounds it, the share of the least mean error, and the errors with it and with all of the difference. Times of
both models are those at the usual clock.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from statistics import mean

from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.databases import alike, shipped_path
from phantora_ns.kernels.fitted.predictor import difference_ns
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import BoundBy, SignatureKind, Source

LEAST = 15
SHARES = [step / 20 for step in range(25)]


def pairs(gpu: str, other: str) -> dict[tuple[int, int], list[tuple[float, float, float]]]:
    """Of what both have, by kind and what bounds it: the other model's time, how much longer it is here by
    the estimates, and this model's own time, in ns."""
    own, there = KernelTimes(gpu, [shipped_path(gpu)]), KernelTimes(other, [shipped_path(other)])
    found = defaultdict(list)
    with Database.open(shipped_path(gpu)) as database:
        for one in database.observations():
            work = one.kind, one.fields, one.context
            its_ns, source, bound_by = there.lookup(*work)
            if source not in (Source.EXACT, Source.LAUNCH):
                continue
            estimates = (times.estimate(*work).duration_ns for times in (own, there))
            more_ns = difference_ns(its_ns, *estimates)
            found[one.kind, bound_by].append((its_ns, more_ns, own.lookup(*work)[0]))
    return found


def error(rows: list[tuple[float, float, float]], share: float) -> float:
    return mean(abs(math.log((its + share * more) / own)) for its, more, own in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h100")
    gpu = parser.parse_args().gpu
    other = alike(gpu)
    assert other is not None
    found = pairs(gpu, other)
    print(f"{sum(map(len, found.values()))} signatures of both")
    for (kind, bound_by), rows in sorted(found.items()):
        if len(rows) >= LEAST:
            best = min(SHARES, key=lambda share: error(rows, share))
            print(
                f"{SignatureKind.LABELS[kind]}_{BoundBy.LABELS[bound_by]}: {len(rows)}, share {best:.0%}, "
                f"error {error(rows, best):.1%}; with all {error(rows, 1.0):.1%}, as the other's "
                f"{error(rows, 0.0):.1%}"
            )


if __name__ == "__main__":
    main()
