"""What bounds a kernel, by its name, against how its time followed a real GPU's clock."""

import gzip
import json
import math
from collections import defaultdict
from statistics import median

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.kernels.estimators import bounds
from phantora_ns.protocol import BoundBy

SPIN_CYCLES, SHORT_NS = 100_000, 100_000
EXPECTED = {BoundBy.MEMORY: (-0.1, 0.2), BoundBy.MIXED: (0.15, 0.5), BoundBy.ISSUE: (0.4, 1.0)}
LIBRARIES = ("nvjet", "cudnn", "Memcpy", "Memset")


@pytest.fixture(scope="module")
def slopes(root):
    """Those on an H200."""
    return slopes_in(root / "bench" / "power" / "data" / "spin.jsonl.gz")


def slopes_in(path):
    """{kernel: slope of log(time) by log(1 / clock)} of bench/power/spin.py, of the pieces of work that are
    one kernel."""
    with gzip.open(path, "rt") as lines:
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


@pytest.mark.parametrize("kind", ["poi", "red", "per"])
def test_inductors_kernels_are_a_class_of_their_own(kind):
    assert bounds.of_kernel(f"triton_{kind}_fused_mul_silu_0") == BoundBy.FUSED


def test_inductors_kernels_do_not_follow_the_clock(root):
    """Four of them on an H100, which fuse what PyTorch's own kernels are bound by issue for."""
    found = slopes_in(root / "bench" / "power" / "data" / "spin-h100.jsonl.gz")
    fused = {k: s for k, s in found.items() if bounds.of_kernel(k) == BoundBy.FUSED}
    assert len(fused) == 4 and all(abs(slope) < 0.2 for slope in fused.values()), fused
    assert load_gpu("h100").power.follows[BoundBy.FUSED] == 0


@pytest.mark.parametrize("name", ["", "triton_mm", "my_triton_poi_kernel", "void f<float>()"])
def test_what_was_not_measured_counts_as_bound_by_memory(name):
    assert bounds.of_kernel(name) == BoundBy.MEMORY
