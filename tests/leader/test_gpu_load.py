"""Why it exists: the filler that keeps a leader's GPU warm must run while the simulation blocks the
job, must stop before the job goes on, and must not affect measurements. Over an emulated GPU, with
a library in between that counts the filler's calls (filler.c)."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)

GEMM, ORDER = 1, 4096
PATIENCE_S = 60

JOB = """
import ctypes, os
lib = ctypes.CDLL(None)
fake = ctypes.CDLL(os.environ["PHANTORA_CUPTI"])
def check(status): assert status == 0, status
pointer, stream = ctypes.c_void_p(), ctypes.c_void_p()
check(lib.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)))
check(lib.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
def fill(size):
    check(lib.cudaMemsetAsync(pointer, 0, ctypes.c_size_t(size), stream))
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
def be_held_up():
    id, comm = Id(), ctypes.c_void_p()
    check(lib.ncclGetUniqueId(ctypes.byref(id)))
    check(lib.ncclCommInitRank(ctypes.byref(comm), 1, id, 0))
def fillers():
    assert lib.filler_inside() == 0, "a call of the filler is under way"
    return lib.filler_products(), lib.filler_copies()
def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            names.append(open(f"/proc/self/task/{task}/comm").read().strip())
        except OSError:  # the thread has ended since the folder was listed
            pass
    return names
"""


def warnings(hub):
    """What the leader warned of; what PHANTORA_LEAD_DEBUG tells apart."""
    return [text for text in hub.notes("warning") if not text.startswith("leading: ")]


class GpuHub(leading.LeadersHub):
    """The emulated GPU's: `busy` is set when the filler's product is asked for."""

    def __init__(self, run_dir):
        super().__init__(run_dir, duration_ns=7000)
        self.busy = threading.Event()

    def _answer(self, client, message):
        if message[0] == leading.LOOKUP and message[5] == GEMM and message[6][3:6] == [ORDER] * 3:
            self.busy.set()
        return super()._answer(client, message)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """(the fake CUPTI, filler.c)."""
    folder = tmp_path_factory.mktemp("below")
    counter = leading.build_library(HERE / "c" / "filler.c", folder / "libfiller.so")
    return leading.build_fake(folder), counter


@pytest.fixture
def lead(tmp_path, built_library, libraries):
    """Runs Python source as a leader whose rendezvous are answered once the GPU is heated, or at
    once; returns (hub, stderr)."""
    fake, counter = libraries

    def run(source, until_heated=True, **variables):
        gpu = load_gpu("h200")
        above, below = (
            leading.run_dir(tmp_path / "above", gpu),
            leading.run_dir(tmp_path / "below", gpu),
        )
        environment = {
            **leading.base_environment(),
            "LD_PRELOAD": f"{built_library.parent / 'libphantora-leader.so'} {counter} {built_library}",
            "PHANTORA_CUPTI": str(fake),
            "PHANTORA_RUN_DIR": str(below),
            "PHANTORA_LEAD_RUN_DIR": str(above),
            "PHANTORA_LEAD_DEBUG": "1",
            **variables,
        }
        with GpuHub(below) as gpu_hub:
            free = (lambda: gpu_hub.busy.wait(PATIENCE_S)) if until_heated else (lambda: None)
            with leading.HoldingHub(above, free) as hub:
                done = subprocess.run(
                    [sys.executable, "-c", JOB + source],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=2 * PATIENCE_S,
                )
        assert done.returncode == 0, done.stderr
        return hub, done.stderr

    return run


def test_the_filler_runs_while_the_job_waits_and_stops_before_it_goes_on(lead):
    hub, stderr = lead("""
assert "phantora-load" not in threads(), "nothing has been measured yet"
for size in (64, 128):
    for _ in range(3): fill(size)
be_held_up()
held = fillers()
assert held[0] > 0  # on a busy machine the job has waited before, and not now
for i in range(3000): fill(64)
assert fillers() == held, "the job was not held up"
be_held_up()
assert fillers()[0] >= held[0]
assert lib.filler_streams_mixed() == 0
""")
    (sizes, counts) = zip(*sorted((key, len(values)) for key, values in hub.measured().items()))
    assert sum(counts) == 3006 and len(sizes) == 2, (
        "every call of the job gave its sample, and the filler none"
    )
    assert "0 overlapped, 0 without work, 0 failed, 0 lost" in stderr
    assert float(stderr.split("GPU kept warm for ")[1].split(" s")[0]) > 0
    assert not warnings(hub)


def test_no_filler_runs_when_it_is_switched_off(lead):
    lead(
        """
fill(64)
be_held_up()
fill(64)
assert "phantora-load" not in threads() and fillers() == (0, 0)
""",
        until_heated=False,
        PHANTORA_LEAD_GPU_LOAD="0",
    )


def test_no_filler_runs_in_a_leader_that_records_its_host_s_costs(lead):
    lead(
        """
fill(64)
be_held_up()
assert "phantora-load" not in threads()
""",
        until_heated=False,
        PHANTORA_LEAD_RECORD="host",
    )


def test_a_filler_that_fails_is_given_up_and_the_job_goes_on(lead):
    hub, stderr = lead("""
fill(64)
be_held_up()
lib.filler_break(13)
while "phantora-load" in threads(): be_held_up()
for _ in range(50): fill(64)
""")
    (warning,) = set(warnings(hub))
    assert "not kept warm" in warning and "cublasGemmEx: error 13" in warning
    assert [len(values) for values in hub.measured().values()] == [51]


def test_a_filler_that_overlaps_a_call_spoils_its_sample_and_is_one_record(lead):
    hub, stderr = lead("""
fill(64); fill(128)
be_held_up()  # the filler's stream is known from here on
def say(start, end):
    n = ctypes.c_uint64
    fake.fake_cupti_next(1, (n * 1)(start), (n * 1)(end), (ctypes.c_uint32 * 1)(7))
for _ in range(3):
    say(0, 1000); fill(64)
fake.fake_cupti_filler(40000, ctypes.c_uint64(49000), ctypes.c_uint64(50000))  # two seconds
say(0, 100000); fill(128)
""")
    counts = sorted(len(values) for values in hub.measured().values())
    assert counts == [1, 4], "one call ran beside the filler: its first sample is all there is"
    assert "1 overlapped" in stderr and "work without a call: 1;" in stderr, stderr
