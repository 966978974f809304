"""What models are fitted on: measured signatures by configuration, from a database or from real traces alike.

Why it exists: the fit must not care where a time was measured, and a model may only be judged on configurations (whole runs)
that it has not seen; so every time carries the configuration that it comes from.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .. import signature
from ..traces import Observation


class Sample(NamedTuple):
    """The median time of one signature in one configuration. `fields` and `context` as in docs/wire-protocol.md (a kernel has
    12 fields); `count` launches were measured."""

    configuration: str
    kind: int
    fields: list
    context: list | None
    median_ns: float
    count: int


def of_observations(configuration: str, found: Iterable[Observation]) -> list[Sample]:
    """The distinct signatures of a trace, with the median of their launches that ran alone. O(launches)."""
    groups: dict[bytes, list[Observation]] = defaultdict(list)
    for observation in found:
        if observation.alone:
            groups[signature.encode(observation.kind, [observation.fields, observation.context])].append(observation)
    return [Sample(configuration, g[0].kind, g[0].fields, g[0].context, statistics.median(o.duration_ns for o in g), len(g))
            for g in groups.values()]


def usable(found: Iterable[Sample]) -> Iterator[Sample]:
    """The samples that took any time at all: a logarithm needs no others."""
    return (sample for sample in found if sample.median_ns > 0 and sample.count > 0)
