"""What the kernel says of sleeping threads, and which sleeps the hub waits for.

The oracle is the kernel: each test process really waits in the way that the test names.
"""

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from client import pair

from phantora_ns.hub import stillness as module
from phantora_ns.hub.processes import Process
from phantora_ns.hub.waits import Wait

SIZE = 1 << 20

WAITS = {
    "time.sleep(100)": Wait.TIME,
    "usleep(50000000)": Wait.TIME,
    "select.select([], [], [], 100)": Wait.TIME,
    "select.poll().poll(100000)": Wait.TIME,
    "threading.Event().wait(0.9)": Wait.TIME,
    "threading.Event().wait(100)": Wait.EVENT,
    "threading.Lock().acquire(); [lock.acquire() for _ in range(2)]": Wait.EVENT,
    "select.select([pipe], [], [])": Wait.EVENT,
    "select.select([pipe], [], [], 100)": Wait.EVENT,
    "loop(lambda: select.select([pipe], [], [], 0.05))": Wait.PERIODIC,
    "loop(lambda: poll.poll(50))": Wait.PERIODIC,
    "poll.poll(100000)": Wait.EVENT,
    "poll.poll()": Wait.EVENT,
    "loop(lambda: epoll.poll(0.05))": Wait.PERIODIC,
    "epoll.poll(100)": Wait.EVENT,
    "epoll.poll()": Wait.EVENT,
    "os.read(pipe, 1)": Wait.EVENT,
    "os.waitpid(child(), 0)": Wait.EVENT,
    "signal.sigtimedwait([], 100)": Wait.EVENT,
    "loop(lambda: None)": Wait.NONE,
}
SETUP = """
import ctypes, os, select, signal, sys, threading, time
usleep = ctypes.CDLL(None).usleep
pipe, end = os.pipe()
lock = threading.Lock()
poll, epoll = select.poll(), select.epoll()
poll.register(pipe), epoll.register(pipe)
def loop(function):
    while True: function()
def child():
    pid = os.fork()
    if not pid: time.sleep(100)
    return pid
print(flush=True)
"""


@pytest.fixture
def waiting():
    """Starts a process that waits by `code`, and ends it."""
    started = []

    def start(code):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", SETUP + code], stdout=subprocess.PIPE, process_group=0
            )
        )
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def main_thread(process):
    """What the main thread of a process waits for."""
    return {tid: thread.wait for tid, thread in process.look()}[process.pid]


def settles(process, expected):
    """Whether looks soon find the main thread waiting like that, and go on finding it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if all(main_thread(process) is expected for _ in range(3)):
            return True
    return False


@pytest.mark.parametrize("code", WAITS)
def test_the_kernel_says_what_a_thread_waits_for(waiting, code):
    assert settles(Process(waiting(code)), WAITS[code])


@pytest.mark.parametrize("code", ["poll.poll(100000)", "usleep(50000000)"])
def test_a_stopped_thread_is_not_asleep_and_then_waits_as_before(waiting, code):
    """After SIGCONT the kernel shows a restarted system call, whichever it was."""
    process = Process(waiting(code))
    assert settles(process, WAITS[code])
    for _ in range(2):
        os.kill(process.pid, signal.SIGSTOP)
        assert settles(process, Wait.NONE)
        os.kill(process.pid, signal.SIGCONT)
        assert settles(process, WAITS[code])


def test_children_are_found(waiting):
    process = Process(waiting("pid = child(); loop(lambda: time.sleep(0.01))"))
    deadline = time.monotonic() + 10
    while not process.children and time.monotonic() < deadline:
        list(process.look())
    assert len(process.children) == 1


# ---- with a hub


RANK = """
import sys
sys.path[:0] = {path!r}
from client import Client
client = Client({run_dir!r}, {rank}, 0)
{code}
"""


@pytest.fixture
def rank(hub):
    """Starts a process that is a client and runs `code`, which begins with its HELLO."""
    started = []

    def start(code, number=2):
        path = [os.path.dirname(__file__)]
        text = SETUP.replace("print(flush=True)", "") + RANK.format(
            path=path, run_dir=str(hub.run_dir), rank=number, code="print(flush=True)\n" + code
        )
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


ACT = "client.advance(1000); print('acted', flush=True); client.advance(10**10); time.sleep(100)"
"""It acts, late enough for the others' answers, and then sleeps beyond them."""


def finish(clients, syncs):
    times = [client.finish_sync(*sync) for client, sync in zip(clients, syncs)]
    assert times[0] == times[1] > 5_000


def answered_after(hub, process, line=b"acted\n"):
    """Whether ranks that wait are answered only after another one has acted."""
    clients, syncs = pair(hub)
    poller = select.poll()
    poller.register(process.stdout, select.POLLIN)
    while not poller.poll(5):
        if any(client.socket.poll(0) for client in clients):
            return False
    assert process.stdout.readline() == line
    finish(clients, syncs)
    return True


SLEEPS = {
    "in C": "usleep(300000)",
    "in Python": "time.sleep(0.3)",
    "on a condition": "threading.Event().wait(0.3)",
    "in another thread": "threading.Thread(target=usleep, args=(300000,)).start(); "
    "[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]",
    "in a worker": "pid = os.fork(); pid or (usleep(300000), os._exit(0)); os.waitpid(pid, 0)",
    "in a worker that works": "pid = os.fork(); "
    "pid or ([sum(range(1000)) for _ in range(20000)], os._exit(0)); os.waitpid(pid, 0)",
    "in several turns": "[usleep(20000) for _ in range(15)]",
}


@pytest.mark.parametrize("how", SLEEPS)
def test_a_rank_that_sleeps_for_a_time_is_waited_for(hub, rank, how):
    """Its next action may be earlier than the answer."""
    process = rank(f"{SLEEPS[how]}; {ACT}")
    assert answered_after(hub, process)
    result = hub.stop()
    assert result["answers_past_sleepers"] == 0


@pytest.mark.parametrize("whom", ["rank", "worker"])
def test_a_stopped_process_is_waited_for(hub, rank, whom):
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    code = stop if whom == "rank" else f"pid = os.fork(); pid or ({stop}, os._exit(0))"
    wait = "" if whom == "rank" else "; print(pid, flush=True); os.waitpid(pid, 0)"
    process = rank(f"{code}{wait}; {ACT}")
    pid = process.pid if whom == "rank" else int(process.stdout.readline())
    clients, syncs = pair(hub)
    assert not clients[0].socket.poll(300)
    os.kill(pid, signal.SIGCONT)
    assert process.stdout.readline() == b"acted\n"
    finish(clients, syncs)


WAITS_FOR_OTHERS = {
    "a read": "sys.stdin.read(1)",
    "a poll with a time-out": "poll.register(0); poll.poll(300000)",
    "a condition with a time-out": "threading.Event().wait(300)",
    "a worker that waits": "pid = os.fork(); pid or (sys.stdin.read(1), os._exit(0)); "
    "os.waitpid(pid, 0)",
    "a periodic look of another thread": "threading.Thread(target=loop, "
    "args=(lambda: poll.poll(10),), daemon=True).start(); sys.stdin.read(1)",
}


@pytest.mark.parametrize("what", WAITS_FOR_OTHERS)
def test_a_rank_that_waits_for_others_is_left_out(hub, rank, what):
    rank(f"{WAITS_FOR_OTHERS[what]}; {ACT}")
    finish(*pair(hub))
    result = hub.stop()
    assert result["answers_past_idle"] == 2 and result["answers_past_sleepers"] == 0


def test_only_the_earliest_answer_is_released(hub, rank):
    """Whoever gets it may wake the rank that was left out."""
    process = rank(f"sys.stdin.read(1); {ACT}")
    clients, syncs = pair(hub)
    first = clients[0].finish_sync(*syncs[0])
    clients[0].look_busy()  # it goes on, and has yet to wake the other one
    assert not clients[1].socket.poll(200)
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.readline() == b"acted\n"
    assert clients[1].finish_sync(*syncs[1]) == first
    assert hub.stop()["answers_past_idle"] == 1


# ---- patience


class Idle:
    """A client that acts no more, in a process of the test."""

    number, acts, leads, waits_for_others = 0, 1, False, False

    def __init__(self, pid):
        self.pid, self.seq, self.pending, self.fetches = pid, 1, {}, ()
        self.stats = self

    def bound_ns(self):
        return 0

    def waiting(self):
        return 0

    def handled(self, seq):
        return True

    quiet = handled


def stands_still(stillness, client, limit_s):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if stillness.reached([client], [client]):
            return True
        time.sleep(0.001)
    return False


def test_whoever_asks_is_told(waiting):
    """Two parts of the hub ask in turn, right after each other: whose time has come, and whether an
    estimate is needed. Neither may take the other's look away."""
    stillness, client = module.Stillness(), Idle(waiting("os.read(pipe, 1)"))
    deadline = time.monotonic() + 60
    while not stillness.reached([client], [client]) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert stillness.reached([client], [client])
    while not stillness.reached([], [client]) and time.monotonic() < deadline:
        assert stillness.reached([client], [client])
    assert stillness.reached([], [client])


@pytest.mark.parametrize(
    ("code", "patience"),
    [
        ("loop(lambda: usleep(20000))", "PATIENCE_S"),
        ("child() if os.fork() else loop(lambda: None); os.wait()", "WORK_PATIENCE_S"),
    ],
)
def test_what_goes_on_for_ever_is_left_out_and_counted(waiting, monkeypatch, code, patience):
    monkeypatch.setattr(module, patience, 0.5)
    stillness, client = module.Stillness(), Idle(waiting(code))
    assert not stands_still(stillness, client, 0.4)
    assert stands_still(stillness, client, 60) and stillness.past_sleepers
    monkeypatch.setattr(module, patience, 1000.0)  # it stays left out, at the next look too
    time.sleep(0.5)
    assert stands_still(stillness, client, 20) and stillness.past_sleepers


POLLS = {
    "rarely": "loop(lambda: time.sleep(0.1))",
    "often": "loop(lambda: usleep(500))",
    "after work": "[sum(range(1000)) for _ in range(50000)]; loop(lambda: time.sleep(0.01))",
}


@pytest.mark.parametrize("how", POLLS)
def test_a_rank_that_polls_does_not_hold_the_job_for_ever(waiting, monkeypatch, how):
    """It is awake in some of the looks, however long the patience is."""
    monkeypatch.setattr(module, "WORKS_S", 0.1)
    monkeypatch.setattr(module, "PATIENCE_S", 3.0)
    stillness, client = module.Stillness(), Idle(waiting(POLLS[how]))
    assert not stands_still(stillness, client, 2.9)
    assert stands_still(stillness, client, 60) and stillness.past_sleepers


def test_patience_is_longer_on_a_busy_machine(waiting, monkeypatch):
    """A busy machine slows down the job, so a sleeping rank needs more time. Seen at a load of 10: the hub
    answered without waiting for a rank that would have gone on."""
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (20.0 * module.os.cpu_count(), 0.0, 0.0))
    stillness, client = module.Stillness(), Idle(waiting("loop(lambda: usleep(20000))"))
    assert not stands_still(stillness, client, 3.0)
    monkeypatch.setattr(module.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert stands_still(stillness, client, 60) and stillness.past_sleepers


def test_patience_does_not_run_while_a_rank_works(waiting, monkeypatch):
    """Its first sleep after three times the patience is not one of many."""
    monkeypatch.setattr(module, "WORKS_S", 0.05)
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    pid = waiting(
        "end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\n"
        "usleep(300000)\nloop(lambda: None)"
    )
    assert not stands_still(module.Stillness(), Idle(pid), 2.5)


def test_a_rank_that_was_stopped_and_then_sleeps_for_once_is_waited_for(waiting, monkeypatch):
    """On a busy machine it may stand for as long without having been stopped."""
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    pid = waiting("os.kill(os.getpid(), signal.SIGSTOP); usleep(500000); loop(lambda: None)")
    stillness, client = module.Stillness(), Idle(pid)
    assert not stands_still(stillness, client, 2.0)
    os.kill(pid, signal.SIGCONT)
    assert not stands_still(stillness, client, 1.0)


def test_sleepers_lose_our_patience_at_the_same_time(waiting, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 2.0)
    monkeypatch.setattr(module, "WORK_PATIENCE_S", 1000.0)
    monkeypatch.setattr(module, "_crowd", lambda: 1.0)
    code = "[os.fork() for _ in range(3)]; loop(lambda: usleep(100000))"
    stillness, client, begin = module.Stillness(), Idle(waiting(code)), time.thread_time()
    looks = 0
    while not stillness.reached([client], [client]):
        looks += 1
        time.sleep(0.01)
        assert time.thread_time() - begin < 60
    assert stillness.past_sleepers and len(stillness._left_out) == 8
    assert max(one.slept_s for one in stillness._sleepers.values()) < 2 * module.PATIENCE_S


def test_a_rank_that_works_is_waited_for_without_patience(waiting, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(module, "WORK_PATIENCE_S", 0.0)
    assert not stands_still(module.Stillness(), Idle(waiting("loop(lambda: None)")), 0.5)


def test_a_reply_on_its_way_keeps_the_job_from_standing_still(waiting, monkeypatch):
    stillness, client = module.Stillness(), Idle(waiting("os.read(pipe, 1)"))
    monkeypatch.setattr(client, "waiting", lambda: 1)
    assert not stands_still(stillness, client, 0.3)
    client.pending = {1: None}  # it waits for an answer that we have not given
    assert stands_still(stillness, client, 60) and not stillness.past_sleepers
