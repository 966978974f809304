"""Why it exists: a leader stands between a job and the real libraries. Over an emulated machine
with one GPU, each call is checked: what the leader answers itself (devices, time), what it passes
on, and what it must not disturb (dlsym, the environment)."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)

PRELUDE = """
import ctypes, os, sys
lib = ctypes.CDLL(None)
def check(status): assert status == 0, status
def number(function, *arguments):
    value = ctypes.c_int(-1)
    check(function(ctypes.byref(value), *arguments))
    return value.value
def handle(function, *arguments):
    value = ctypes.c_void_p()
    check(function(ctypes.byref(value), *arguments))
    return value
"""


@pytest.fixture
def lead(tmp_path, built_library):
    """Runs Python source as a leader on a machine with one GPU, in a job with eight per node;
    returns (hub, stdout)."""
    gpu = load_gpu("h200")

    def run(source, *arguments, **variables):
        above, below = (
            leading.run_dir(tmp_path / "above", gpu),
            leading.run_dir(tmp_path / "below", gpu),
        )
        names = tmp_path / "names"
        names.mkdir()
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            (names / name).symlink_to(built_library)
        environment = {
            **leading.base_environment(),
            "LD_PRELOAD": f"{built_library.parent / 'libphantora-leader.so'} {built_library}",
            "LD_LIBRARY_PATH": str(names),
            "PHANTORA_CUPTI": str(leading.build_fake(tmp_path)),
            "PHANTORA_RUN_DIR": str(below),
            "PHANTORA_LEAD_RUN_DIR": str(above),
            "PHANTORA_GPUS_PER_NODE": "1",
            "PHANTORA_LEAD_GPUS_PER_NODE": "8",
            "FAKE_CUPTI_LOG": "/dev/null",
            **variables,
        }
        command = [sys.executable, "-c", PRELUDE + source, *map(str, arguments)]
        with leading.LeadersHub(above) as hub, leading.LeadersHub(below, duration_ns=7000):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=60
            )
        assert done.returncode == 0, done.stdout + done.stderr
        return hub, done.stdout

    return run


def test_one_real_gpu_stands_for_the_node_s_eight(lead):
    lead("""
assert number(lib.cudaGetDeviceCount) == number(lib.cuDeviceGetCount) == 8
check(lib.cudaSetDevice(3))
assert number(lib.cudaGetDevice) == 3
assert number(lib.cuDeviceGet, 5) == 0, "the driver's device is the real one"
assert number(lib.cudaDeviceGetAttribute, 16, 7) == number(lib.cuDeviceGetAttribute, 16, 7) == 132
assert number(lib.cudaDeviceCanAccessPeer, 3, 4) == 1 and number(lib.cudaDeviceCanAccessPeer, 3, 3) == 0
check(lib.cudaDeviceEnablePeerAccess(4, 0))
pointer = handle(lib.cudaMalloc, ctypes.c_size_t(1000))
attributes = (ctypes.c_int * 32)()
check(lib.cudaPointerGetAttributes(attributes, pointer))
assert list(attributes[:2]) == [2, 3], "device memory, of the logical device"
assert lib.cudaSetDevice(8) == 101 and lib.cudaGetLastError() == 101
assert lib.cuDeviceGet(ctypes.byref(ctypes.c_int()), 8) == 101
assert number(lib.cudaGetDevice) == 3
active = ctypes.c_int()
states = []
for device in range(8):
    check(lib.cuDevicePrimaryCtxGetState(device, ctypes.byref(ctypes.c_uint()), ctypes.byref(active)))
    states.append(active.value)
assert states == [0, 0, 0, 1, 0, 0, 0, 0], states
stream = handle(lib.cudaStreamCreate)
assert number(lambda out: lib.cudaStreamGetDevice(stream, out)) == 3
nvml = ctypes.CDLL("libnvidia-ml.so.1")
check(nvml.nvmlInit_v2())
assert number(nvml.nvmlDeviceGetCount_v2) == 8
handle(lambda out: nvml.nvmlDeviceGetHandleByIndex_v2(7, out))
assert nvml.nvmlDeviceGetHandleByIndex_v2(8, ctypes.byref(ctypes.c_void_p())) != 0
""")


@pytest.mark.parametrize("machine", ["0", None])
def test_the_job_s_list_of_gpus_is_for_the_job_and_the_machine_s_for_the_driver(lead, machine):
    variables = {} if machine is None else {"PHANTORA_MACHINE_VISIBLE_DEVICES": machine}
    _, out = lead(
        """
os.environ["CUDA_VISIBLE_DEVICES"] = "2,5,6"
print(number(lib.cudaGetDeviceCount), os.environ["CUDA_VISIBLE_DEVICES"])
lib.getenv.restype = ctypes.c_char_p
print(lib.getenv(b"CUDA_VISIBLE_DEVICES"))
check(lib.cudaSetDevice(2))
assert lib.cudaSetDevice(3) == 101
""",
        **variables,
    )
    assert out.splitlines() == ["3 2,5,6", "None" if machine is None else f"b'{machine}'"]


def test_events_tell_simulated_time(lead):
    hub, out = lead("""
pointer = handle(lib.cudaMalloc, ctypes.c_size_t(1 << 20))
stream, start, end = handle(lib.cudaStreamCreate), handle(lib.cudaEventCreate), handle(lib.cudaEventCreate)
elapsed = ctypes.c_float()
assert lib.cudaEventElapsedTime(ctypes.byref(elapsed), start, end) == 400, "never recorded"
check(lib.cudaEventRecord(start, stream))
for _ in range(1000): check(lib.cudaMemsetAsync(pointer, 0, ctypes.c_size_t(1 << 20), stream))
check(lib.cudaEventRecord(end, stream))
assert lib.cudaEventQuery(end) == lib.cudaStreamQuery(stream) == 600
check(lib.cudaEventSynchronize(end))
assert lib.cudaEventQuery(end) == lib.cudaStreamQuery(stream) == 0
check(lib.cudaEventElapsedTime(ctypes.byref(elapsed), start, end))
print(round(elapsed.value * 1e6))
check(lib.cudaEventDestroy(start)); check(lib.cudaStreamDestroy(stream))
""")
    host = load_gpu("h200").host
    expected = 1000 * (7000 + host.kernel_gap_ns)
    assert abs(int(out) - expected) <= host.launch_latency_ns + 7000, (
        "as measured below: 7,000 ns each, one after the other"
    )


LOOKUP = """
def load(path, flags=0):
    library = ctypes.CDLL(path, flags)
    library.lookup_next.restype = library.lookup_version_next.restype = library.lookup_in.restype = ctypes.c_void_p
    return library
def owner(address):
    for line in open("/proc/self/maps"):
        low, high = (int(number, 16) for number in line.split()[0].split("-"))
        if low <= address < high: return os.path.basename(line.split()[-1])
"""


def test_dlsym_gives_ours_to_the_job_and_the_real_one_to_nvidia_s_libraries(lead, lookups):
    lead(
        LOOKUP
        + """
job, vendor = load(sys.argv[1]), load(sys.argv[2])
for name in (b"cuLaunchKernel", b"cuLaunchKernelEx", b"cuMemcpyHtoDAsync_v2", b"cudaLaunchKernel"):
    assert owner(job.lookup_in(b"libcuda.so.1", name)) == "libphantora-leader.so", name
    assert owner(vendor.lookup_in(b"libcuda.so.1", name)) == "libphantora.so", name
assert owner(job.lookup_in(b"libcuda.so.1", b"cuCtxGetCurrent")) == "libphantora.so", "not wrapped"
assert job.lookup_in(b"libcuda.so.1", b"cuNoSuchFunction") is None
assert job.lookup_in(b"libc.so.6", b"cuLaunchKernel") is None, "libc has no such function"
entry = handle(lambda out: lib.cudaGetDriverEntryPointByVersion(b"cuMemcpyHtoDAsync", out, 13000, 0, None))
assert entry.value == job.lookup_in(b"libcuda.so.1", b"cuMemcpyHtoDAsync_v2")
""",
        lookups("libjob.so", 1),
        lookups("libcublas-like.so", 2),
    )


def test_rtld_next_still_goes_by_its_caller(lead, lookups, built_library):
    numbers = [lookups(f"libnumber{n}.so", n) for n in (1, 2, 3)]
    preload = [built_library.parent / "libphantora-leader.so", built_library, *numbers]
    lead(
        LOOKUP
        + """
first, second, third = (load(path) for path in sys.argv[1:4])
def following(library):
    address = library.lookup_next(b"lookup_number")
    assert library.lookup_version_next(b"lookup_number", b"LOOKUP") == address
    return address and ctypes.CFUNCTYPE(ctypes.c_int)(address)()
assert (following(first), following(second), following(third)) == (2, 3, None)
""",
        *numbers,
        LD_PRELOAD=" ".join(map(str, preload)),
    )


def test_a_captured_graph_is_warned_of(lead):
    hub, _ = lead("""
stream = handle(lib.cudaStreamCreate)
check(lib.cudaStreamBeginCapture(stream, 0))
graph = ctypes.c_void_p()
check(lib.cudaStreamEndCapture(stream, ctypes.byref(graph)))
check(lib.cudaMemset(handle(lib.cudaMalloc, ctypes.c_size_t(4096)), 0, ctypes.c_size_t(4096)))  # asks the hub
""")
    assert [note for note in hub.notes("warning") if "graph" in note]


CAPTURED = """
class Id(ctypes.Structure): _fields_ = [("bytes", ctypes.c_char * 128)]
lib.ncclGetErrorString.restype = lib.ncclGetLastError.restype = ctypes.c_char_p
comm = handle(lib.ncclCommInitRank, 1, Id(), 0)
stream, side, fork = handle(lib.cudaStreamCreate), handle(lib.cudaStreamCreate), handle(lib.cudaEventCreate)
data, other = (handle(lib.cudaMalloc, ctypes.c_size_t(1 << 20)) for _ in range(2))
def reduce(on): return lib.ncclAllReduce(data, other, ctypes.c_size_t(1 << 18), 7, 0, comm, on)
check(reduce(stream))
check(lib.cudaStreamBeginCapture(stream, 2))
"""


@pytest.mark.parametrize("how", ["on the stream", "on one that it forks", "in a group"])
def test_captured_communication_is_refused_in_one_line(lead, how):
    """A graph's launches on the real GPU would not meet the other ranks' communication."""
    hub, out = lead(
        CAPTURED
        + """
if sys.argv[1] == "on one that it forks":
    check(lib.cudaEventRecord(fork, stream))
    check(lib.cudaStreamWaitEvent(side, fork, 0))
    assert reduce(side) == 5
elif sys.argv[1] == "in a group":
    check(lib.ncclGroupStart())
    check(reduce(stream)), check(reduce(side))
    assert lib.ncclGroupEnd() == 5
else:
    assert reduce(stream) == reduce(stream) == 5, "ncclInvalidUsage"
print(lib.ncclGetLastError(None).decode())
""",
        how,
        RANK="3",
    )
    told = [note for note in hub.notes("warning") if "refused" in note]
    assert told == out.splitlines(), "the user reads it once, and PyTorch's exception has it too"
    assert (
        "ncclAllReduce of 1048576 bytes over 1 ranks is refused: rank 3 leads" in told[0]
        and "--leaders none" in told[0]
    )
    assert len(hub.of(leading.OPS)) == 1, "the one before the capture"


def test_communication_beside_a_capture_goes_on(lead):
    hub, _ = lead(
        CAPTURED
        + """
check(reduce(side))
graph = ctypes.c_void_p()
check(lib.cudaStreamEndCapture(stream, ctypes.byref(graph)))
check(reduce(stream))
assert lib.ncclGetLastError(None) == b""
"""
    )
    assert len(hub.of(leading.OPS)) == 3 and not [
        note for note in hub.notes("warning") if "refused" in note
    ]


@pytest.mark.parametrize("calls", [1, 2500], ids=["a_first_measurement", "a_full_queue"])
def test_work_beside_a_capture_does_not_break_it(lead, calls):
    """The captured stream has work that the leader has not settled yet. Whatever else is measured meanwhile, a
    capture that is queried or waited for ends with an error."""
    lead(
        """
stream, side = handle(lib.cudaStreamCreate), handle(lib.cudaStreamCreate)
data = handle(lib.cudaMalloc, ctypes.c_size_t(1 << 20))
def fill(size, on): return lib.cudaMemsetAsync(data, 0, ctypes.c_size_t(size), on)
check(fill(4096, stream)), check(fill(4096, stream))
check(lib.cudaStreamBeginCapture(stream, 2))
for _ in range(int(sys.argv[1])):
    check(fill(1 << 16, side))
graph = ctypes.c_void_p()
check(lib.cudaStreamEndCapture(stream, ctypes.byref(graph)))
check(lib.cudaDeviceSynchronize())
""",
        str(calls),
    )


def test_a_refused_capture_is_none(lead):
    """The default stream cannot be captured; what is refused the leader must not take for a
    capture."""
    hub, _ = lead("""
stream = ctypes.c_void_p()
assert lib.cudaStreamBeginCapture(stream, 0) == 900
pointer = handle(lib.cudaMalloc, ctypes.c_size_t(4096))
check(lib.cudaMemsetAsync(pointer, 0, ctypes.c_size_t(4096), stream))
check(lib.cudaStreamSynchronize(stream))
""")
    assert len(hub.measured()) == 1 and not [
        note for note in hub.notes("warning") if "graph" in note
    ]
