"""Why it exists: the caching allocator breaks ties between equal free blocks by their address, so
peaks are a real GPU's only if the driver's order of addresses is. The record is a real one
(bench/accuracy/data/memory): every allocation of four steps on an H200.
"""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "accuracy"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def memory_history():
    sys.path.insert(0, str(BENCH))
    try:
        import memory_history

        yield memory_history
    finally:
        sys.path.remove(str(BENCH))
        sys.modules.pop("memory_history", None)


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


def test_segments_lie_in_a_real_drivers_order(phantora, memory_history, tmp_path):
    record = tmp_path / "simulated.jsonl.gz"
    done = phantora(
        "--quiet",
        "--host-time",
        "none",
        "torchrun",
        "--nproc-per-node",
        "1",
        BENCH / "memory_history.py",
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
    real = memory_history.read(str(BENCH / "data" / "memory" / "160m-none-1k.jsonl.gz"))
    simulated = memory_history.read(str(record))
    # frees after the last step are the interpreter's affair
    assert allocations(simulated) == allocations(real)
    assert segments(simulated) == segments(real)
