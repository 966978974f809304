"""One profiled step of a real job: its kernels, the collectives beside them, and what the
contention model makes of both.

Why it exists: pairs of one kernel and one collective in short bursts are not a training step, where
the power limit has taken part of what contention would. What a kernel takes when a collective
covers it is compared with launches of the same kernel, in the same step, that none touches. Both are
launches beside which no other stream computes: that costs time, too (two_kernels.py). A trace
holds one rank, so the time of a collective in it contains the wait for the others.
"""

import json
import statistics
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

from phantora_ns.kernels.contention import KernelContention
from phantora_ns.kernels.evaluation.trace_launches import join_shapes, read_events
from phantora_ns.kernels.evaluation.trace_signatures import GEMM_OPERATORS, gemm_fields
from phantora_ns.protocol import BoundBy, SignatureKind
from phantora_ns.sim.contention import Activity

NAMES = {BoundBy.MEMORY: "memory", BoundBy.COMPUTE: "gemm", BoundBy.ATTENTION: "attention"}
# by the name of NCCL's kernel; numbers as in sim/collectives.py
KINDS = {
    "AllReduce": 0,
    "AllGather": 1,
    "ReduceScatter": 2,
}
ITEM_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4}
FREE, COVERED = 0.01, 0.98  # share of a launch beside collectives
STEADY = 1.3  # uncovered launches that differ by more are not of one kind


class Launch(NamedTuple):
    """One kernel: what tells equal launches, its class, its product if it is one, and when it ran,
    in ns of the trace's clock. `computed_ns`: how long another stream computed meanwhile."""

    key: tuple
    bound_by: int
    product: list | None
    begin_ns: int
    end_ns: int
    covered_ns: int
    computed_ns: int

    @property
    def length_ns(self):
        return self.end_ns - self.begin_ns

    @property
    def computes_alone(self):
        return self.computed_ns <= FREE * self.length_ns


class Collective(NamedTuple):
    """One collective: its kind, the bytes and ranks that plan it, and when its kernel ran."""

    kind: str
    count_bytes: int
    ranks: tuple
    begin_ns: int
    end_ns: int


class Judged(NamedTuple):
    """Launches of one kernel and product that collectives touch, in sums of ns: as measured, alone,
    and by the model."""

    bound_by: int
    product: list | None
    launches: int
    measured_ns: int
    alone_ns: int
    model_ns: int


def class_of(name):
    """The class of a kernel or of a measured piece of compute by its name."""
    name = name.lower()
    if any(word in name for word in ("sdpa", "flash", "attention")):
        return BoundBy.ATTENTION
    return (
        BoundBy.COMPUTE
        if any(word in name for word in ("gemm", "nvjet", "cutlass"))
        else BoundBy.MEMORY
    )


def nanoseconds(event):
    """(begin, end) of an event of a Kineto trace, whose times are microseconds."""
    return round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)


class Step:
    """A trace with the record of its operators' shapes (bench/kernels/shapes.py). Raises TraceError
    and OSError."""

    def __init__(self, path, shapes):
        events = read_events(path)
        join_shapes(events, shapes)
        operators = {
            e["args"]["External id"]: e
            for e in events
            if e.get("cat") == "cpu_op" and "External id" in e["args"]
        }
        gpu = sorted(
            (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
            key=lambda e: e["ts"],
        )
        nccl = [e for e in gpu if e["name"].startswith("ncclDev")]
        self.collectives = [c for c in map(self._collective, nccl) if c is not None]
        self.busy = Activity()
        for number, event in enumerate(nccl):
            self.busy.put(number, *nanoseconds(event))
        self.spans = _union(nanoseconds(event) for event in nccl)
        computing = [e for e in gpu if not e["name"].startswith("ncclDev")]
        busy = defaultdict(list)
        for event in computing:
            busy[event["args"]["stream"]].append(nanoseconds(event))
        self.others = {
            stream: _union(one for other in busy if other != stream for one in busy[other])
            for stream in busy
        }
        self.launches = [
            self._launch(e, operators.get(e["args"].get("External id"))) for e in computing
        ]

    @staticmethod
    def _collective(event):
        arguments = event["args"]
        kind = next((kind for kind in KINDS if kind in event["name"]), None)
        if (
            kind is None
            or arguments.get("dtype") not in ITEM_BYTES
            or "In msg nelems" not in arguments
        ):
            return None
        size = arguments["In msg nelems"] * ITEM_BYTES[arguments["dtype"]]
        ranks = tuple(json.loads(arguments["Process Group Ranks"]))
        return Collective(
            kind,
            size // len(ranks) if kind == "ReduceScatter" else size,
            ranks,
            *nanoseconds(event),
        )

    def _launch(self, event, operator):
        arguments, begin_end = event["args"], nanoseconds(event)
        dims = json.dumps(operator["args"].get("Input Dims")) if operator else ""
        key = (
            event["name"],
            tuple(arguments.get("grid", ())),
            arguments.get("bytes"),
            operator["name"] if operator else "",
            dims,
        )
        bound_by = class_of(event["name"])
        plain = (
            bound_by == BoundBy.COMPUTE
            and operator is not None
            and operator["name"] in GEMM_OPERATORS
        )
        product = gemm_fields(operator, "tf32" in event["name"]) if plain else None
        computed_ns = _covered(self.others[arguments["stream"]], *begin_end)
        covered_ns = _covered(self.spans, *begin_end)
        return Launch(key, bound_by, product, *begin_end, covered_ns, computed_ns)

    @cached_property
    def alone(self):
        """Median ns of the launches of each key that no collective touches, where there are any and
        they agree."""
        found = defaultdict(list)
        for launch in self.launches:
            if launch.computes_alone and launch.covered_ns <= FREE * launch.length_ns:
                found[launch.key].append(launch.length_ns)
        return {
            key: statistics.median(ns)
            for key, ns in found.items()
            if max(ns) <= STEADY * statistics.median(ns)
        }

    def judge(self, permille, covered_only=False):
        """Every kind of launch that collectives touch, replayed beside the trace's own collectives;
        `permille` as in KernelContention."""
        found = defaultdict(list)
        least = COVERED if covered_only else FREE
        for launch in self.launches:
            if launch.computes_alone and launch.covered_ns > least * launch.length_ns:
                found[launch.key].append(launch)
        for key, launches in found.items():
            alone_ns = round(self.alone.get(key, 0))
            if not alone_ns:
                continue
            bound_by, product = launches[0].bound_by, launches[0].product
            drag_ns = (
                alone_ns
                * permille(
                    SignatureKind.GEMM if product else SignatureKind.KERNEL,
                    product or [],
                    bound_by,
                )
                // 1000
            )
            model_ns = sum(
                self.busy.finish_ns(v.begin_ns, alone_ns, drag_ns) - v.begin_ns for v in launches
            )
            measured_ns = sum(v.length_ns for v in launches)
            yield Judged(
                bound_by, product, len(launches), measured_ns, alone_ns * len(launches), model_ns
            )

    @cached_property
    def touched_ns(self):
        """Time of all launches that collectives touch, those that cannot be judged too."""
        return sum(v.length_ns for v in self.launches if v.covered_ns > FREE * v.length_ns)

    def ratios(self, alone_ns, least_bytes=1 << 24, least_beside=0.9):
        """By kind: (time over `alone_ns(collective)`) of the large collectives that compute covers,
        in rising order."""
        compute = _union((v.begin_ns, v.end_ns) for v in self.launches)
        found = defaultdict(list)
        for one in self.collectives:
            length_ns = one.end_ns - one.begin_ns
            if (
                one.count_bytes >= least_bytes
                and _covered(compute, one.begin_ns, one.end_ns) > least_beside * length_ns
            ):
                found[one.kind].append(length_ns / alone_ns(one))
        return {kind: sorted(values) for kind, values in found.items()}


def shares(gpu, product=None):
    """As `KernelContention(gpu).permille`; `product`: one share (permille) for every matrix product
    instead."""
    permille = KernelContention(gpu).permille
    if product is None:
        return permille
    return lambda kind, fields, bound_by: (
        product if kind == SignatureKind.GEMM else permille(kind, fields, bound_by)
    )


def _union(spans):
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def _covered(spans, begin, end):
    return sum(max(0, min(end, e) - max(begin, b)) for b, e in spans)
