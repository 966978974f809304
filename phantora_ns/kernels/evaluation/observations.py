"""What models are fitted on: measured signatures by configuration, from a database or from real
traces alike.

Why it exists: the fit must not care where a time was measured, and a model may only be judged on
configurations (whole runs) that it has not seen; so every time carries the configuration that it
comes from.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator

from phantora_ns.kernels import signature
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.evaluation.trace_launches import Launch


def of_launches(configuration: str, found: Iterable[Launch]) -> list[Observation]:
    """The distinct signatures of a trace, with the median of their launches that ran alone.
    O(launches)."""
    groups: dict[bytes, list[Launch]] = defaultdict(list)
    for launch in found:
        if launch.alone:
            groups[signature.encode(launch.kind, [launch.fields, launch.context])].append(launch)
    return [
        Observation(
            configuration,
            g[0].kind,
            g[0].fields,
            g[0].context,
            statistics.median(o.duration_ns for o in g),
            len(g),
        )
        for g in groups.values()
    ]


def usable(found: Iterable[Observation]) -> Iterator[Observation]:
    """The observations that took any time at all: a logarithm needs no others."""
    return (one for one in found if one.median_ns > 0 and one.count > 0)
