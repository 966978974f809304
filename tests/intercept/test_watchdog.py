"""Why it exists: in a run that repeats, what NCCL's watchdogs see must follow from simulated time
alone, however long the host sleeps. The job waits for a round of each of them; it knows those of
PyTorch's older process group by name, and those of nccl2 by what their threads do."""

import os
import subprocess
from pathlib import Path

import msgpack
import pytest

from tests.intercept.recording_hub import QUERY, RecordingHub

COLLECTIVE_NS = 2_000_000_000

JOB = """
import ctypes, sys, threading, time
lib = ctypes.CDLL(None)
NOT_READY, THREAD_LOCAL, PR_SET_NAME = 600, 1, 15
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
identity, comm, event, buffer = Id(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert lib.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(2 << 20)) == 0
assert lib.ncclGetUniqueId(ctypes.byref(identity)) == 0
assert lib.ncclCommInitRank(ctypes.byref(comm), 1, identity, 0) == 0
assert lib.cudaEventCreate(ctypes.byref(event)) == 0
other = ctypes.c_void_p(buffer.value + (1 << 20))  # one rank's all-reduce in place does nothing

def exchange(mode):
    mode = ctypes.c_int(mode)
    assert lib.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    return mode.value

def communicate():
    assert lib.ncclAllReduce(buffer, other, ctypes.c_size_t(1 << 18), 7, 0, comm, None) == 0
    assert lib.cudaEventRecord(event, None) == 0

def ask_for_errors():
    error = ctypes.c_int(-1)
    assert lib.ncclCommGetAsyncError(comm, ctypes.byref(error)) == 0 and error.value == 0

ends = threading.Event()

def named(seen, polls):
    lib.prctl(PR_SET_NAME, b"pt_nccl_watchdg")
    while not ends.wait(0.1):
        before = exchange(THREAD_LOCAL)
        if polls: seen.append(lib.cudaEventQuery(event))
        exchange(before)

def nccl2(seen, polls):
    before = exchange(THREAD_LOCAL)
    while not ends.wait(1):
        if polls: seen.append(lib.cudaEventQuery(event))
        ask_for_errors()
    exchange(before)

def no_watchdog(seen, polls):
    exchange(exchange(THREAD_LOCAL))
    ends.wait()

"""

SEES = (
    JOB
    + """
seen = []
watch = globals()[sys.argv[1]]
threads = [threading.Thread(target=watch, args=(seen, polls), daemon=True) for polls in (True, False)]
threads.append(threading.Thread(target=no_watchdog, args=(seen, False), daemon=True))
for thread in threads: thread.start()
for number in range(2):
    communicate()
    time.sleep(2.5)  # the time of the collective's end is known, and the host stands still
    assert seen and set(seen) == {NOT_READY}, seen
    assert lib.cudaDeviceSynchronize() == 0  # two seconds of simulated time
    assert 0 in seen, seen
    seen.clear()
ends.set()
for thread in threads: thread.join()
"""
)


RECORDED_MEANWHILE = (
    JOB
    + """
import os
def again():
    while not os.path.exists(sys.argv[1]): time.sleep(0.01)
    communicate()
    lib.phantora_pass_ns(ctypes.c_uint64(10**4))  # it may have begun: the hub is asked
    lib.cudaEventQuery(event)
communicate()
thread = threading.Thread(target=again)
thread.start()
lib.phantora_pass_ns(ctypes.c_uint64(10**9))  # the answer is not certain now
found = [lib.cudaEventQuery(event)]
thread.join()
found.append(lib.cudaEventQuery(event))
assert found == [0, NOT_READY], found
"""
)


class SlowToAnswer(RecordingHub):
    """Says that what the first query asks about is over, once there was a second query."""

    def __init__(self, run_dir):
        self.asked, self.held = run_dir / "asked", None
        super().__init__(run_dir, collective_ns=COLLECTIVE_NS)

    def _answer(self, client, message):
        if message[0] != QUERY or not message[6]:
            return super()._answer(client, message)
        answer = super()._answer(client, message)
        if not self.asked.exists():
            self.held = [client, msgpack.packb([QUERY, message[2], 1, 0, [], [], []])]
            self.asked.touch()
            return None
        if self.held:
            self._socket.send_multipart(self.held)
            self.held = None
        return answer


def test_the_answer_to_a_query_is_not_about_what_is_recorded_meanwhile(run_python, run_dir):
    with SlowToAnswer(run_dir) as hub:
        run_python(RECORDED_MEANWHILE, hub.asked, timeout=20)


@pytest.fixture
def slow_hub(run_dir):
    """A hub double under which communication takes two seconds."""
    with RecordingHub(run_dir, collective_ns=COLLECTIVE_NS, tells_watchdogs=True) as running:
        yield running


@pytest.mark.parametrize("watchdog", ["named", "nccl2"])
def test_a_watchdog_sees_the_end_of_communication_where_the_job_waits_for_it(
    run_python, slow_hub, watchdog
):
    run_python(SEES, watchdog)
    assert slow_hub.notes("warning") == []


SLEEPS = (
    JOB
    + """
library = ctypes.CDLL(sys.argv[1])
polls, has_name = sys.argv[2] == "polls", sys.argv[3] == "named"
library.sleeper_start.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_bool
library.sleeper_start(event.value if polls else None, comm, has_name)
time.sleep(0.2)
for number in range(1, 6):
    communicate()
    library.sleeper_disturb()
    time.sleep(0.1)
    assert library.sleeper_ready() < number
    assert lib.cudaDeviceSynchronize() == 0  # two seconds of simulated time
    assert library.sleeper_ready() == (number if polls else 0), (number, library.sleeper_ready())
    assert library.sleeper_rounds() >= number, (number, library.sleeper_rounds())
library.sleeper_end()
"""
)


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory):
    library = tmp_path_factory.mktemp("sleeper") / "libtorch_cuda.so"
    source = Path(__file__).resolve().parent / "c" / "sleeper.c"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-pthread", "-o", library, source]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("polls", ["polls", "has nothing to poll"])
@pytest.mark.parametrize("watchdog", ["named", "nccl2"])
def test_a_watchdog_is_woken_where_the_job_waits_for_it(
    run_python, slow_hub, sleeper, watchdog, polls
):
    """However long it would sleep: a day here."""
    run_python(SLEEPS, sleeper, polls, watchdog)
    assert slow_hub.notes("warning") == []
