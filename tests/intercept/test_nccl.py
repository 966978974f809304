"""NCCL's calls: which launches wait for each other, and what a refused call costs."""

from itertools import pairwise
from pathlib import Path

import pytest

from bench.gpus import steps, visit
from tests.intercept.recording_hub import OPS

DATA = Path(__file__).resolve().parents[2] / "bench" / "gpus" / "data"

REFUSED = """
import ctypes
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
class Mallinfo(ctypes.Structure):  # malloc.h: struct mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks "
                "uordblks fordblks keepcost".split()]
lib.mallinfo2.restype = Mallinfo
identity, comm, buffer = Id(), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)) == 0
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) == 0
other = ctypes.c_void_p(buffer.value + (1 << 19))
count, none, no_stream = ctypes.c_size_t(1024), ctypes.c_void_p(), (ctypes.c_char * 4096)()
INVALID_ARGUMENT, FLOAT32, SUM = 4, 7, 0
CALLS, GROUP = 10_000, 10

def alone():
    assert lib.ncclAllReduce(buffer, other, count, FLOAT32, SUM, comm, no_stream) == INVALID_ARGUMENT

def grouped():
    lib.ncclGroupStart()
    for _ in range(GROUP):
        assert lib.ncclAllReduce(buffer, other, count, FLOAT32, SUM, comm, no_stream) == 0
    assert lib.ncclGroupEnd() == INVALID_ARGUMENT

for refused, times in ((alone, CALLS), (grouped, CALLS // GROUP)):
    refused()
    before = lib.mallinfo2().uordblks
    for _ in range(times):
        refused()
    print(lib.mallinfo2().uordblks - before)
"""


def test_an_operation_on_a_stream_that_does_not_exist_keeps_no_memory(run_python, hub):
    """10,000 operations of 100 bytes each were kept."""
    for grown in run_python(REFUSED).stdout.split():
        assert int(grown) < 100_000


TWO_STREAMS = """
import ctypes, sys
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
buffer = ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 22)) == 0
streams, comms = (ctypes.c_void_p * 2)(), (ctypes.c_void_p * 2)()
for i in range(2):
    identity, comm, stream = Id(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
    assert lib.ncclCommInitRank(ctypes.byref(comm), 2, identity, 0) == 0
    assert lib.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    comms[i], streams[i] = comm, stream
count, FLOAT32, SUM = ctypes.c_size_t(1 << 18), 7, 0

def collective(comm, stream, parts=1):
    here = ctypes.c_void_p(comms[comm]), ctypes.c_void_p(streams[stream])
    part = ctypes.c_size_t(count.value // parts)
    assert lib.ncclAllReduce(buffer, buffer, part, FLOAT32, SUM, *here) == 0

def message(comm, stream, call):
    here = ctypes.c_void_p(comms[comm]), ctypes.c_void_p(streams[stream])
    assert call(buffer, count, FLOAT32, 1, *here) == 0

def captured(comm):
    graph, exec = ctypes.c_void_p(), ctypes.c_void_p()
    stream = ctypes.c_void_p(streams[0])
    assert lib.cudaStreamBeginCapture(stream, 2) == 0
    collective(comm, 0)
    assert lib.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert lib.cudaGraphInstantiate(ctypes.byref(exec), graph, ctypes.c_ulonglong(0)) == 0
    assert lib.cudaGraphLaunch(exec, stream) == 0

def compute():
    stream = ctypes.c_void_p(streams[0])
    assert lib.cudaMemsetAsync(buffer, 0, ctypes.c_size_t(1 << 22), stream) == 0

def wait(waiting, awaited):
    event = ctypes.c_void_p()
    assert lib.cudaEventCreateWithFlags(ctypes.byref(event), 2) == 0
    assert lib.cudaEventRecord(event, ctypes.c_void_p(streams[awaited])) == 0
    assert lib.cudaStreamWaitEvent(ctypes.c_void_p(streams[waiting]), event, 0) == 0

exec(sys.argv[1])
assert lib.cudaDeviceSynchronize() == 0  # the hub has all messages now
assert lib.ncclCommDestroy(ctypes.c_void_p(comms[0])) == 0
"""


def launched_after(run_python, hub, calls):
    """Whether the second launch waits for the first one's end."""
    run_python(TWO_STREAMS, calls)
    first, second = hub.of(OPS)
    return first[5] in second[6][0::3]


@pytest.mark.parametrize("second", ["collective(0, 1)", "collective(0, 0)", "captured(0)"])
def test_collectives_of_one_communicator_run_one_after_another(run_python, hub, second):
    """NCCL orders them on whatever streams they are. On separate streams they shared the links, and
    FSDP's all-gathers and reduce-scatters took up to 1.4 times what they really take."""
    assert launched_after(run_python, hub, f"collective(0, 1); {second}")


@pytest.mark.parametrize(
    "calls",
    [
        "collective(0, 0); collective(1, 1)",  # two communicators
        "message(0, 0, lib.ncclSend); message(0, 1, lib.ncclRecv)",  # the send may be buffered
    ],
)
def test_other_launches_on_two_streams_run_beside_each_other(run_python, hub, calls):
    assert not launched_after(run_python, hub, calls)


BESIDE = """
for step in range(6):
    compute(); wait(1, 0); collective(0, 1)
    {first}
    compute(); wait(1, 0); collective(0, 1, 2)
    {second}
    compute()
"""
WAITS = "wait(0, 1)"


@pytest.mark.parametrize(
    "first, second, expected",
    [("", "", [1, 1]), (WAITS, WAITS, [0, 0]), (WAITS, "", [0, 1]), ("", WAITS, [1, 0])],
)
def test_compute_that_follows_a_collective_is_expected_beside_it(
    run_python, hub, first, second, expected
):
    """Compute that is launched after a collective runs beside it, unless it waits. Nothing of it is
    launched when the collective is, so only earlier steps can tell."""
    run_python(TWO_STREAMS, BESIDE.format(first=first, second=second))
    flags = [message[3].get("beside", 0) for message in hub.of(OPS)]
    assert len(flags) == 12 and flags[-6:] == expected * 3


def test_real_collectives_of_one_communicator_never_overlap():
    """The law, in 21 real steps on up to four GPUs. Where tensor and data parallel groups have
    communicators of their own, theirs do overlap."""
    overlaps = {}
    for trace in visit.traces(DATA):
        kernels = sorted(
            (k for k in steps.of_line(trace) if k.name.startswith("nccl")), key=lambda k: k.begin
        )
        several = sum(b.begin < a.end for a, b in pairwise(kernels))
        overlaps[trace["part"]] = overlaps.get(trace["part"], 0) + several
    assert len(overlaps) == 21 and overlaps.pop("8b12-fsdp_tp2-4k@4") > 0
    assert not any(overlaps.values())
