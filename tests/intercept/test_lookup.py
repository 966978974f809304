"""Why it exists: a function that is looked up by name (dlsym, dlvsym) must be ours for the job,
NVIDIA's for NVIDIA's own libraries, and untouched for everyone else. A thread that only looks
functions up must not disturb its process."""

from pathlib import Path

import pytest

SITE = Path(pytest.__file__).parents[1]

PRELUDE = """
import ctypes, os, sys
def load(path):
    library = ctypes.CDLL(path)
    for name in ("lookup_next", "lookup_in", "lookup_version_next", "lookup_version_in"):
        getattr(library, name).restype = ctypes.c_void_p
    return library
def owner(address):
    for line in open("/proc/self/maps"):
        low, high = (int(number, 16) for number in line.split()[0].split("-"))
        if low <= address < high: return os.path.basename(line.split()[-1])
"""


@pytest.fixture
def cudart():
    """NVIDIA's runtime, from the wheel that PyTorch brings."""
    return next((SITE / "nvidia").glob("*/lib/libcudart.so.1[23]"))


def test_a_function_looked_up_in_nvidias_runtime_is_ours(run_python, lookups, cudart):
    run_python(
        PRELUDE
        + """
job, vendor, runtime = load(sys.argv[1]), load(sys.argv[2]), os.fsencode(sys.argv[3])
for name in (b"cudaGetDevice", b"cudaLaunchKernelExC", b"cudaMallocAsync"):
    assert owner(job.lookup_in(runtime, name)) == "libphantora.so", name
    assert owner(vendor.lookup_in(runtime, name)).startswith("libcudart"), name
assert job.lookup_in(runtime, b"cudaNoSuchFunction") is None
assert job.lookup_in(b"libc.so.6", b"cudaGetDevice") is None, "libc has no such function"
assert owner(job.lookup_in(b"libc.so.6", b"cuserid") or job.lookup_in(b"libc.so.6", b"abort")).startswith("libc")
device = ctypes.c_int(-1)
get_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(job.lookup_in(runtime, b"cudaGetDevice"))
assert get_device(ctypes.addressof(device)) == 0
assert device.value == 0
""",
        lookups("libjob.so", 1),
        lookups("libcublas-like.so", 2),
        cudart,
    )


def test_a_function_looked_up_by_its_version_is_ours_too(run_python, lookups, cudart):
    run_python(
        PRELUDE
        + """
vendors = os.fsencode(sys.argv[2])
job, vendor, runtime = load(sys.argv[1]), load(vendors), os.fsencode(sys.argv[3])
version = os.path.basename(runtime)
for name in (b"cudaGetDevice", b"cudaLaunchKernelExC", b"cudaMallocAsync"):
    assert job.lookup_version_in(runtime, name, version) == job.lookup_in(runtime, name), name
    assert owner(job.lookup_version_in(runtime, name, version)) == "libphantora.so", name
    assert vendor.lookup_version_in(runtime, name, version) == vendor.lookup_in(runtime, name), name
    assert job.lookup_version_in(runtime, name, b"libcudart.so.1") is None, "no such version: the truth"
assert job.lookup_version_in(runtime, b"cudaNoSuchFunction", version) is None
found = job.lookup_in(vendors, b"lookup_number")
assert found is not None and found == job.lookup_version_in(vendors, b"lookup_number", b"LOOKUP")
""",
        lookups("libjob.so", 1),
        lookups("libcublas-like.so", 2),
        cudart,
    )


def test_rtld_next_still_goes_by_its_caller(run_python, lookups, built_library):
    numbers = [lookups(f"libnumber{n}.so", n) for n in (1, 2, 3)]
    run_python(
        PRELUDE
        + """
def number(address):
    return address and ctypes.CFUNCTYPE(ctypes.c_int)(address)()
libraries = [load(path) for path in sys.argv[1:4]]
assert [number(library.lookup_next(b"lookup_number")) for library in libraries] == [2, 3, None]
assert [number(library.lookup_version_next(b"lookup_number", b"LOOKUP")) for library in libraries] == [2, 3, None]
""",
        *numbers,
        LD_PRELOAD=" ".join(map(str, [built_library, *numbers])),
    )


WATCHDOG = """
import ctypes, threading, time
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm, event = Id(), ctypes.c_void_p(), ctypes.c_void_p()
buffer = ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(2 << 20)) == 0
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) == 0
other = ctypes.c_void_p(buffer.value + (1 << 20))  # one rank's all-reduce in place does nothing
assert lib.ncclAllReduce(buffer, other, ctypes.c_size_t(1 << 18), 7, 0, comm, None) == 0
assert lib.cudaEventCreate(ctypes.byref(event)) == 0
assert lib.cudaEventRecord(event, None) == 0
looks = 0
def look_until(end):
    global looks
    while time.monotonic() < end:
        assert lib.cudaEventQuery(event) == 600  # cudaErrorNotReady: what the hub double always says
        looks += 1
watchdog = threading.Thread(target=look_until, args=(time.monotonic() + 1,))
watchdog.start()
watchdog.join()
print(looks)
"""


ALONE = """
import ctypes
lib = ctypes.CDLL(None)
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm, buffer = Id(), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(2 << 20)) == 0
other = ctypes.c_void_p(buffer.value + (1 << 20))
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) == 0
FLOAT32, SUM, AVERAGE = 7, 0, 4
for target, operation in ((buffer, SUM), (other, SUM), (buffer, AVERAGE)):
    assert lib.ncclAllReduce(buffer, target, ctypes.c_size_t(1 << 18), FLOAT32, operation, comm, None) == 0
assert lib.ncclAllGather(buffer, buffer, ctypes.c_size_t(1 << 18), FLOAT32, comm, None) == 0
"""


def test_a_rank_alone_communicates_only_what_must_move(run_python, hub):
    """In place NCCL does nothing for a communicator of one rank; elsewhere it copies, and an
    average multiplies by 1."""
    from tests.intercept.recording_hub import OPS

    run_python(ALONE)
    assert len([message for message in hub.messages if message[0] == OPS]) == 2


def test_a_watchdog_that_looks_without_a_pause_does_not_disturb_its_rank(run_python, hub):
    """As PyTorch's does when a process group is destroyed: a rank that is never quiet is never
    found idle by the others."""
    done = run_python(WATCHDOG, PHANTORA_HOST_TIME="measured")
    looks = int(done.stdout)
    assert 0 < looks <= 20, "one second holds no more than twenty rounds with a pause of 50 ms"
    assert len([message for message in hub.messages if message[0] == 3]) <= looks
