"""Why it exists: whatever call of a run fails, the run ends as docs/reliability.md says. Some faults
here, those that once did not; all calls every night."""

import errno
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.reliability.faults import STEPS, Fault, FaultRange, draw
from tests.reliability.hostile import machines, memory_groups
from tests.reliability.runs import led

RUN_DIR = "ROOT/runtime/phantora-ns-*"
NIGHT_S = 2.5 * 3600


@pytest.fixture(scope="module")
def in_range():
    """Runs of a job of two ranks with an injector in all processes."""
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # short, for the hub's socket
    yield FaultRange(folder)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "site, nth, error, code",
    [
        ("launcher epoll_create1 -", 2, errno.EMFILE, 70),
        (f"launcher mkdir {RUN_DIR}/ranks", 1, errno.ENOSPC, 70),
        (f"launcher open64 {RUN_DIR}/ranks/*", 2, errno.EMFILE, 70),
        (f"launcher read {RUN_DIR}/hub.json", 1, errno.EIO, 70),
        (f"hub mmap64 {RUN_DIR}/ranks/*", 1, errno.ENOMEM, 1),
        (f"rank mmap {RUN_DIR}/host.tbl", 1, errno.ENOMEM, 1),
        pytest.param(
            *("sandbox fopen /proc/self/uid_map", 1, errno.EMFILE, 70),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="it is read for root alone"),
        ),
    ],
)
def test_a_fault_is_said_and_leaves_nothing(in_range, site, nth, error, code):
    fault = Fault(site, nth, error)
    run = in_range.hit(fault)
    assert run.struck, f"no such call: {fault}"
    assert not run.wrong and run.code == code, f"{fault}: {run.code} {run.wrong}\n{run.err}"


def on(in_range, name):
    """What is wrong with a run on such a machine."""
    machine = machines(in_range.folder)[name]
    run = in_range.once(lambda *_: None, True, machine.variables, machine.within)
    wrong = run.wrong + (in_range.differences(run, False) if run.code == 0 else [])
    if run.code != machine.code or machine.says not in run.err:
        wrong.append(f"exit code {run.code}")
    if "Traceback" in run.err or (run.code and not run.messages):
        wrong.append("no line of ours, or a traceback")
    return f"{name}: {wrong}\n{run.err}" if wrong else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "files of 128 KiB",
        "64 KiB for the run",
        "TMPDIR with other letters",
        "a home to read",
        pytest.param(
            "one gigabyte of memory",
            marks=pytest.mark.skipif(
                memory_groups() is None, reason="needs a control group of memory"
            ),
        ),
    ],
)
def test_a_run_on_a_hostile_machine(in_range, name):
    wrong = on(in_range, name)
    assert not wrong, wrong


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_all_hostile_machines(in_range):
    wrong = [said for name in machines(in_range.folder) if (said := on(in_range, name))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("leads", [False, True])
def test_every_call_fails_once(in_range, tmp_path, leads):
    if leads:
        in_range = FaultRange(tmp_path, led(STEPS))
    seed = os.environ.get("CAMPAIGN_SEED") or str(random.randrange(10**6))
    print(f"seed {seed}: python -m tests.reliability.fault_campaign --seed {seed} repeats these")
    wrong, begin = [], os.times().elapsed
    faults = list(draw(in_range.sites(), seed))
    for number, fault in enumerate(faults):
        if os.times().elapsed - begin > NIGHT_S:
            print(f"{number} of {len(faults)} faults in {NIGHT_S:.0f} s")
            break
        run = in_range.hit(fault)
        if run.wrong:
            wrong.append(f"{fault}: code {run.code}: {run.wrong}\n{run.err[-3000:]}")
    assert not wrong, "\n".join(wrong)
