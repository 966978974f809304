"""From the runs of logs to samples: one operation, on these GPUs of a cluster, of this size, took so long.

Why it exists: a log names hosts and devices; a cluster has nodes and GPUs by number. Rules: hosts are
nodes in the order of a run's ranks, so a run on two other hosts is one on the same two nodes. All
times of one operation and size, out of place and in place and of repeated runs, are one sample with
their median, because a simulated operation has one time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phantora_ns.calibrate.nccl_log import LogError, Rank, Run

MOST_FLOWS = 20_000
"""Of one operation: more take minutes for each."""


@dataclass(frozen=True)
class Sample:
    """`groups`: (node, GPU of the node) of each rank, by communicators that ran side by side.
    `size`: bytes as nccl-tests counts them. `us`: the median; `least_us` to `most_us` were measured.
    """

    operation: str
    groups: tuple[tuple[tuple[int, int], ...], ...]
    size: int
    root: int
    us: float
    least_us: float
    most_us: float

    @property
    def ranks(self) -> int:
        """Of one communicator."""
        return len(self.groups[0])

    @property
    def nodes(self) -> int:
        """Of one communicator."""
        return len({node for node, _ in self.groups[0]})

    @property
    def place(self) -> str:
        """Where it ran, for people."""
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else " in a server"
        side = f", {len(self.groups)} side by side" if len(self.groups) > 1 else ""
        return f"{self.ranks} GPUs{nodes}{side}"


@dataclass(frozen=True)
class Measured:
    """What logs say. `notes`: what was not used, and why."""

    samples: tuple[Sample, ...]
    gpu: str
    nccl: str | None
    nodes: int
    gpus_per_node: int
    notes: tuple[str, ...]


def measured(runs: Sequence[Run]) -> Measured:
    """The samples of all runs. Raises LogError when they are not of one cluster, or nothing is left."""
    names = {rank.gpu for run in runs for rank in run.ranks}
    if len(names) > 1:
        listed = ", ".join(sorted(names))
        raise LogError(
            f"the logs are of different GPUs: {listed}; {runs[0].log}; calibrate one cluster at a time"
        )
    notes: dict[str, None] = {}
    used: dict[tuple, list[float]] = {}
    for run in runs:
        if why := _unusable(run):
            notes[f"{run.operation} not used: {why}; {run.log}"] = None
            continue
        if run.damaged:
            notes[f"{run.damaged} damaged rows left out; {run.log}"] = None
        if run.wrong:
            notes[f"{run.wrong} results were wrong (#wrong), their times count; {run.log}"] = None
        groups = tuple(_place(run.ranks, group) for group in run.groups())
        for row in run.rows:
            key = (run.operation, groups, row.size, max(row.root, 0))
            used.setdefault(key, []).extend(timing.us for timing in row.timings)
    samples = tuple(
        Sample(*key, statistics.median(times), min(times), max(times))
        for key, times in sorted(used.items())
    )
    if not samples:
        raise LogError("; ".join(notes) or "the logs hold no times")
    releases = {run.nccl for run in runs if run.nccl}
    if len(releases) > 1:
        notes[f"releases of NCCL differ: {', '.join(sorted(releases))}; the last counts"] = None
    places = [place for sample in samples for group in sample.groups for place in group]
    return Measured(
        samples,
        names.pop(),
        max(releases, key=lambda text: [int(part) for part in text.split(".")], default=None),
        1 + max(node for node, _ in places),
        1 + max(gpu for _, gpu in places),
        tuple(notes),
    )


def _unusable(run: Run) -> str:
    """Why a run says nothing about links, "" if it does."""
    ranks = len(run.groups()[0])
    if ranks == 1:
        return "one rank communicates with nobody"
    if run.unusual:
        return f"measured {run.unusual}, unlike a job"
    if run.operation == "hypercube" and ranks & (ranks - 1):
        return f"a hypercube of {ranks} ranks"
    messages = ranks * ranks if run.operation == "alltoall" else ranks
    if messages * len(run.groups()) > MOST_FLOWS:
        return f"{messages * len(run.groups())} messages at once would take minutes for each size"
    return ""


def _place(ranks: Iterable[Rank], group: Iterable[Rank]) -> tuple[tuple[int, int], ...]:
    """(node, GPU) of each rank of the group. Devices that are all called 0 (one visible GPU for each
    process) are numbered in the order of their ranks."""
    hosts: dict[str, list[Rank]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    places: dict[int, tuple[int, int]] = {}
    for node, found in enumerate(hosts.values()):
        distinct = len({rank.device for rank in found}) == len(found)
        for order, rank in enumerate(found):
            places[rank.number] = (node, rank.device if distinct else order)
    return tuple(places[rank.number] for rank in group)


def split(samples: Iterable[Sample]) -> tuple[list[Sample], list[Sample]]:
    """(those to fit, those left out): every second size of each operation and place, from the largest
    down."""
    series: dict[tuple, list[Sample]] = {}
    for sample in samples:
        series.setdefault((sample.operation, sample.groups, sample.root), []).append(sample)
    fitted, left_out = [], []
    for found in series.values():
        for place, sample in enumerate(sorted(found, key=lambda one: -one.size)):
            (left_out if place % 2 else fitted).append(sample)
    return fitted, left_out
