"""Why it exists: a signal must end whatever the launcher does, also where it waits outside of its
event loop (for a lock on a database) or computes (tables)."""

import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from phantora_ns.kernels.database import databases
from phantora_ns.launch.run.events import EventLoop, Interrupted
from tests.interruptible import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wait_for_a_database_ends_with_a_signal(tmp_path, number):
    with open(tmp_path / ".mine.sqlite.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        heard = []
        loop = EventLoop()
        with loop.signals(heard.append):
            threading.Thread(target=os.kill, args=(os.getpid(), number)).start()
            with pytest.raises(Interrupted) as caught, loop.interruptible():
                databases.add(tmp_path / "mine.sqlite", [])
    assert caught.value.number == number and heard == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.timeout(60)
def test_a_computation_ends_with_a_signal(number):
    """As of tables of a large cluster."""
    loop, begun = EventLoop(), threading.Event()

    def strike():
        begun.wait()
        os.kill(os.getpid(), number)

    with loop.signals(lambda number: pytest.fail("the loop was told")):
        threading.Thread(target=strike).start()
        with pytest.raises(Interrupted) as caught, loop.interruptible():
            begun.set()
            while True:
                sum(range(10_000))
    assert caught.value.number == number


def test_a_signal_that_came_before_is_not_lost():
    loop = EventLoop()
    with loop.signals(lambda number: None):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Interrupted), loop.interruptible():
            pytest.fail("it began")


def test_elsewhere_the_loop_hears_of_it():
    heard = []
    loop = EventLoop()
    with loop.signals(heard.append):
        signal.raise_signal(signal.SIGINT)
        loop.step()
    assert heard == [signal.SIGINT]


def test_a_sigint_before_the_job_begins_ends_the_command_without_words(tmp_path):
    """As a SIGTERM does. Here it waits for its cluster file."""
    cluster = tmp_path / "cluster.toml"
    os.mkfifo(cluster)
    command = subprocess.Popen(
        [sys.executable, "-m", "phantora_ns", "--cluster", cluster, "--", "true"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    with open(cluster, "w"):  # once it reads
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=60)
    assert command.returncode == -signal.SIGINT
    assert err == "\n"  # after the ^C
