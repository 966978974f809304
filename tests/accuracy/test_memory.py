"""Why it exists: the caching allocator breaks ties between equal free blocks by their address, so
peaks are a real GPU's only if the driver's order of addresses is. The record is a real one
(bench/accuracy/data/memory): every allocation of four steps on an H200.
"""

from pathlib import Path

import pytest

from bench.accuracy import memory_history
from tests.torch_release import measured_under_2_11

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
pytestmark = [pytest.mark.slow, pytest.mark.truth, measured_under_2_11]


def segments(events):
    """Segments' sizes in order of their addresses."""
    return [
        size
        for _address, size in sorted(
            (address, size)
            for action, address, size, _stream in events
            if action == "segment_alloc"
        )
    ]


def allocations(events):
    """What was asked of the driver and of the allocator, in order: (action, bytes)."""
    return [
        (action, size)
        for action, _address, size, _stream in events
        if action in ("segment_alloc", "alloc")
    ]


def test_segments_lie_in_a_real_drivers_order(phantora, tmp_path):
    record = tmp_path / "simulated.jsonl.xz"
    done = phantora(
        "--quiet",
        "--host-time",
        "none",
        "torchrun",
        "--nproc-per-node",
        "1",
        "-m",
        "bench.accuracy.memory_history",
        "record",
        record,
        "--size=160m",
        "--mode=none",
        "--seq=1024",
        "--steps=4",
        "--warmup=1",
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    real = memory_history.read(str(BENCH / "data" / "memory" / "160m-none-1k.jsonl.xz"))
    simulated = memory_history.read(str(record))
    # the interpreter decides the order of frees after the last step
    assert allocations(simulated) == allocations(real)
    assert segments(simulated) == segments(real)
