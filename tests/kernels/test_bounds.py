"""What bounds a kernel, by its name, against how its time followed a real GPU's clock."""

import gzip
import json
import math
from collections import defaultdict
from statistics import median

import pytest

from phantora_ns.kernels.estimators import bounds
from phantora_ns.protocol import BoundBy

SPIN_CYCLES, SHORT_NS = 100_000, 100_000
EXPECTED = {BoundBy.MEMORY: (-0.1, 0.2), BoundBy.MIXED: (0.15, 0.5), BoundBy.ISSUE: (0.4, 1.0)}
LIBRARIES = ("nvjet", "cudnn", "Memcpy", "Memset")


@pytest.fixture(scope="module")
def slopes(root):
    """{kernel: slope of log(time) by log(1 / clock)} of bench/power/spin.py on an H200, of the pieces
    of work that are one kernel."""
    with gzip.open(root / "bench" / "power" / "data" / "spin.jsonl.gz", "rt") as lines:
        (states,) = (line for line in map(json.loads, lines) if line["section"] == "states")
    points, labels = defaultdict(list), iter(states["labels"])
    before, kernels = None, []
    for name, _, duration in states["rows"]:
        if "spin_kernel" not in states["names"][name]:
            kernels.append((states["names"][name], duration))
        elif duration < SHORT_NS:
            label = next(labels)
            if len(kernels) == 1 and before and not label.startswith("background"):
                cycle_ns = (before + duration) / 2 / SPIN_CYCLES
                points[kernels[0][0]].append((math.log(cycle_ns), math.log(kernels[0][1])))
            before, kernels = duration, []
    found = {}
    for kernel, pairs in points.items():
        fast = sorted(pairs)[: len(pairs) // 4]
        cycle, time = (median(column) for column in zip(*fast, strict=True))
        moved = [(x - cycle, y - time) for x, y in pairs]
        found[kernel] = sum(x * y for x, y in moved) / sum(x * x for x, _ in moved)
    return {k: s for k, s in found.items() if not k.startswith(LIBRARIES) and "cudnn" not in k}


def test_classes_are_those_that_were_measured(slopes):
    classes = {kernel: bounds.of_kernel(kernel) for kernel in slopes}
    assert set(classes.values()) == set(EXPECTED) and len(classes) > 12
    wrong = {
        kernel[:120]: round(slope, 2)
        for kernel, slope in slopes.items()
        if not EXPECTED[classes[kernel]][0] <= slope <= EXPECTED[classes[kernel]][1]
    }
    assert not wrong


@pytest.mark.parametrize(
    "name", ["", "triton_poi_fused_mul_silu_0", "my_kernel", "void f<float>()"]
)
def test_what_was_not_measured_counts_as_bound_by_memory(name):
    assert bounds.of_kernel(name) == BoundBy.MEMORY
