"""Why it exists: a process that ends may not take its last messages with it: libzmq's own thread sends
them."""

from tests.intercept.recording_hub import OPS

LAUNCHES = 900
ENDS_WITH_LAUNCHES = """
import ctypes, sys
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm, buffer, stream = Id(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)) == 0
assert lib.cudaStreamCreate(ctypes.byref(stream)) == 0
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 2, identity, 0) == 0
count, FLOAT32, SUM = ctypes.c_size_t(1 << 18), 7, 0
for _ in range(int(sys.argv[1])):
    lib.ncclAllReduce(buffer, buffer, count, FLOAT32, SUM, comm, stream)
lib.exit(0)
"""


def test_the_last_messages_of_a_process_arrive(run_python, hub):
    """Before exit() waited for the hub, 93 to 355 of these 900 launches arrived."""
    run_python(ENDS_WITH_LAUNCHES, LAUNCHES)
    assert len(hub.of(OPS)) == LAUNCHES
