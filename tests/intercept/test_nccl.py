"""NCCL's calls that are refused: by the right code, and at no cost."""

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
