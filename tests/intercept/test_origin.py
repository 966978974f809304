"""Why it exists: jobs compare `time.time()` of their ranks, so all that use CUDA at one time show
simulated time 0 as the same moment, however far apart they began. Whoever begins when the others
have ended follows on real time instead."""

import subprocess
import sys
import time

import pytest

RANK = """
import ctypes, os, sys, time
library = ctypes.PyDLL(None)
library.phantora_touch_clock.restype = ctypes.c_int64
library.phantora_elapsed_ns.restype = ctypes.c_uint64
for command in sys.stdin:
    if command == "begin\\n":
        print(time.clock_gettime_ns(time.CLOCK_REALTIME), time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        assert library.cudaFree(None) == 0 and library.phantora_elapsed_ns()
    elif command == "fork\\n":
        reads, writes = os.pipe()
        if os.fork() == 0:
            os.close(writes)
            os.read(reads, 1)  # its parent's end
            print(os.getpid(), flush=True)
            os.read(0, 1)  # the test's
            os._exit(0)
        print("forked")
    else:
        print(library.phantora_touch_clock(int(command)))
    sys.stdout.flush()
"""
REALTIME, MONOTONIC = time.CLOCK_REALTIME, time.CLOCK_MONOTONIC


class Rank:
    """A process that does what it is told."""

    def __init__(self, environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, command):
        """The numbers that it answers with."""
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split() if word.isdigit()]

    def origin(self, clock=REALTIME):
        return self.tell(int(clock))[0]

    def end(self, kill=False):
        if kill:
            self.process.kill()  # nothing where it has been waited for
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def rank(hub, environment):
    """Makes a process that does not use CUDA yet."""
    started = []

    def start():
        started.append(Rank(environment))
        return started[-1]

    yield start
    for one in started:
        one.end(kill=True)


def after(moment_ns):
    """Waits until a moment of real time is over."""
    while time.time_ns() <= moment_ns:
        time.sleep(max(0, moment_ns - time.time_ns()) / 1e9)


def test_a_rank_that_begins_late_has_the_same_clock(rank):
    first, late, later = rank(), rank(), rank()
    first.tell("begin")
    origin = first.origin()
    assert origin % 1_000_000_000 == 0
    after(origin)
    late.tell("begin")
    assert late.origin() == origin
    after(origin + 1_000_000_000)
    later.tell("begin")
    first.end()  # another one still has it
    assert later.origin() == origin == late.origin()


def test_no_clock_goes_back_of_ranks_that_begin_before_one_is_asked_for(rank):
    ranks = [rank(), rank()]
    began = []
    for one in ranks:
        began.append(one.tell("begin"))
        after(began[0][0] // 1_000_000_000 * 1_000_000_000 + 1_000_000_000)
    origins = {one.origin() for one in ranks}
    assert len(origins) == 1
    assert origins.pop() >= max(real for real, _ in began)


def test_the_monotonic_clock_never_goes_back(rank):
    first, late = rank(), rank()
    first.tell("begin")
    after(first.origin())
    _, real_ns = late.tell("begin")
    assert late.origin(MONOTONIC) >= real_ns


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_that_comes_when_all_have_ended_follows_on_real_time(rank, killed):
    one, other = rank(), rank()
    for each in one, other:
        each.tell("begin")
    origin = one.origin()
    for each in one, other:
        each.end(killed)
    after(origin)
    again, beside = rank(), rank()
    real_ns, _ = again.tell("begin")
    beside.tell("begin")
    assert again.origin() == beside.origin() >= real_ns > origin


def test_a_forked_child_keeps_no_origin(rank):
    parent = rank()
    parent.tell("begin")
    origin = parent.origin()
    parent.tell("fork")
    parent.process.kill()
    assert parent.process.stdout.readline()  # the child lives
    after(origin)
    again = rank()
    real_ns, _ = again.tell("begin")
    assert again.origin() >= real_ns > origin


def test_an_origin_that_cannot_be_agreed_on_is_one_line(hub, run_python, run_dir):
    (run_dir / "origin").mkdir()
    done = run_python("import ctypes; ctypes.PyDLL(None).cudaFree(None)", check=False)
    assert done.returncode == 70
    assert done.stderr == f"phantora-ns: cannot open {run_dir}/origin: Is a directory\n"
