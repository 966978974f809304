"""Why it exists: the threads of a job that is led use CUDA at once, beside the filler and CUPTI's own
thread. ThreadSanitizer sees each access to shared state of the leader's library that no lock
orders, whether or not it did harm in this run. The emulated GPU and the fake CUPTI are not
instrumented: only what the leader's library does is looked at."""

import importlib.util
import subprocess
import time
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.protocol import RankStats
from tests import thread_sanitizer

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("leading", HERE / "leading.py")
leading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(leading)

PATIENCE_S = 60
# what is recorded, and whether streams wait for host functions (c/in_order.c)
CASES = {
    "kernels": ("kernels", False),
    "kernels-streams-wait": ("kernels", True),
    "host": ("host", False),
    "values-streams-wait": ("values", True),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """c/races.c and the leader's library under ThreadSanitizer; the emulated GPU, c/in_order.c and
    the fake CUPTI below them."""
    folder = tmp_path_factory.mktemp("races")
    thread_sanitizer.require(folder)
    emulator = thread_sanitizer.build_library("libphantora.so", folder / "below", False)
    return (
        thread_sanitizer.build_program(HERE / "c/races.c", emulator, folder),
        thread_sanitizer.build_library("libphantora-leader.so", folder),
        emulator,
        leading.build_library(HERE / "c/in_order.c", folder / "libphantora-in-order.so"),
        leading.build_fake(folder),
    )


def launches(run_dir):
    """The number of kernels that all processes of a run have launched so far."""
    pages = [RankStats.unpack(page.read_bytes()) for page in (run_dir / "ranks").iterdir()]
    return sum(sum(page.launches) for page in pages)


def await_filler(hub, below, deadline):
    """Returns when the filler has given the emulated GPU work; at once before it may run."""
    if not hub.told:
        return
    before = launches(below)
    while launches(below) == before and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.parametrize("case", CASES)
def test_threads_that_are_led_share_no_state_without_a_lock(built, tmp_path, case):
    (program, library, emulator, in_order, fake), (records, waits) = built, CASES[case]
    gpu = load_gpu("h200")
    above, below = (leading.run_dir(tmp_path / name, gpu) for name in ("above", "below"))
    (above / "trace").mkdir()
    environment = {
        **leading.base_environment(),
        "TSAN_OPTIONS": thread_sanitizer.OPTIONS,
        "PHANTORA_CUPTI": str(fake),
        "PHANTORA_RUN_DIR": str(below),
        "PHANTORA_HOST_TIME": "measured",  # else the filler's queries wait for the job's threads
        "PHANTORA_LEAD_RUN_DIR": str(above),
        "PHANTORA_LEAD_HOST_TIME": "auto",
        "PHANTORA_LEAD_RECORD": records,
        "PHANTORA_LEAD_TRACE": "1",
        "PHANTORA_LEAD_DEBUG": "1",
    }
    preload = f"LD_PRELOAD={library} {in_order if waits else ''} {emulator}"
    # setarch is not instrumented, so it cannot have the library
    command = [*thread_sanitizer.unshuffled(), "env", preload, program]
    deadline = time.monotonic() + PATIENCE_S
    with (
        leading.LeadersHub(below, duration_ns=100),
        leading.HoldingHub(above, lambda: await_filler(hub, below, deadline)) as hub,
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[:20000]
    assert done.stdout == "threads 6\n"
    kept_warm_s = float(done.stderr.split("GPU kept warm for ")[1].split(" s")[0])
    assert (kept_warm_s > 0) == (records == "kernels"), "the filler ran beside the job"
    assert bool(hub.measured()) == (records == "kernels")
    assert ("calls" in hub.host()[0]) == (records != "kernels")
    assert (above / "values.rec").exists() == (records == "values")
