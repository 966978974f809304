"""Copies inside a GPU: compute that meets one waits for its end."""

from pathlib import Path

import pytest

from bench.gpus import steps, visit
from tests.intercept.recording_hub import RecordingHub

DATA = Path(__file__).resolve().parents[2] / "bench" / "gpus" / "data"
COPY_NS, FILL_NS = 400_000, 50_000

MEETING = """
import ctypes, sys
lib = ctypes.CDLL(None)
SIZE = 1 << 20
buffer = ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(SIZE)) == 0
streams, events = [], []
for i in range(2):
    stream = ctypes.c_void_p()
    assert lib.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    streams.append(stream)
for i in range(3):
    event = ctypes.c_void_p()
    assert lib.cudaEventCreateWithFlags(ctypes.byref(event), 0) == 0
    events.append(event)

def fill(stream):
    assert lib.cudaMemsetAsync(buffer, 0, ctypes.c_size_t(SIZE), streams[stream]) == 0

def copy(stream, bytes=SIZE // 2):
    to = ctypes.c_void_p(buffer.value + SIZE // 2)
    assert lib.cudaMemcpyAsync(to, buffer, ctypes.c_size_t(bytes), 3, streams[stream]) == 0

def record(event, stream):
    assert lib.cudaEventRecord(events[event], streams[stream]) == 0

for _ in range(20):
    fill(0)  # the GPU is behind the host, and this stream is the one that computes
record(0, 0)
if sys.argv[1] == "after":
    assert lib.cudaStreamWaitEvent(streams[1], events[0], 0) == 0
copy(1)
record(1, 1)
fill(0)
record(2, 0)
assert lib.cudaDeviceSynchronize() == 0
elapsed = ctypes.c_float()
for event in (1, 2):
    assert lib.cudaEventElapsedTime(ctypes.byref(elapsed), events[0], events[event]) == 0
    print(round(elapsed.value * 1e6))
"""


@pytest.fixture
def hub(run_dir):
    def duration_ns(fields):
        return COPY_NS if fields[2] == fields[3] else FILL_NS

    with RecordingHub(run_dir, duration_ns) as running:
        yield running


def test_compute_that_meets_a_copy_waits_for_its_end(run_python, hub):
    copied, filled = map(int, run_python(MEETING, "after").stdout.split())
    assert COPY_NS <= copied < COPY_NS + 10_000
    assert copied + FILL_NS <= filled < copied + FILL_NS + 10_000


def test_real_kernels_that_meet_a_copy_end_with_it():
    """FSDP on one GPU: a reduce-scatter is a copy on a stream of its own. Casts of 5 to 24 us that
    it meets in the backward pass end when it ends, 40 us later at most."""
    for trace in visit.traces(DATA):
        if trace["part"] not in ("1b-fsdp-4k@1", "8b12-fsdp-8k-ac@1"):
            continue
        step = steps.Step(steps.of_line(trace))
        copies = [k for k in step.side if k.name.startswith("Memcpy DtoD") and k.length > 100_000]
        met = [
            (kernel, copy)
            for copy in copies
            for kernel in step.main
            if kernel.begin < copy.end - 50_000 and kernel.end > copy.begin + 50_000
        ]
        assert len(met) >= 6
        assert all(0 <= kernel.end - copy.end < 40_000 for kernel, copy in met)
