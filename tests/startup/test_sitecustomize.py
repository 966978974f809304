"""Why it exists: the start-up hook must change four clocks and `sleep` after the touch, and nothing before it
or beside them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interruptible import interruptible

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "phantora_ns" / "startup"


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libfake.so"
    subprocess.run(
        [
            "cc",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-o",
            path,
            Path(__file__).with_name("fake_interceptor.c"),
        ],
        check=True,
    )
    return path


def python(code, preload=None, paths=(HOOK,), **environment):
    base = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA", "LD_PRELOAD"))}
    base |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
    if preload:
        base["LD_PRELOAD"] = str(preload)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=base,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


TOUCH = (
    "import ctypes, time; touch = ctypes.PyDLL(None).fake_set; touch.argtypes = (ctypes.c_uint64,);"
)


def test_clocks_are_continuous_from_the_touch(fake):
    out = python(
        TOUCH
        + "touch(1); print(time.time_ns(), time.time(), time.perf_counter_ns(), time.perf_counter());"
        "touch(1 + 2500000000); print(time.time_ns(), time.time(), time.perf_counter_ns(), time.perf_counter())",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out.splitlines() == [
        "1700000000000000000 1700000000.0 5000000000 5.0",
        "1700000002500000000 1700000002.5 7500000000 7.5",
    ]


def test_clocks_are_real_before_the_touch(fake):
    out = python(
        "import time; r = time.clock_gettime_ns; C = time.CLOCK_REALTIME, time.CLOCK_MONOTONIC\n"
        "a = [r(c) for c in C]; b = time.time_ns(), time.perf_counter_ns(); s = time.time(), time.perf_counter()\n"
        "z = [r(c) for c in C]; print(all(x <= y <= w and x <= t * 1e9 + 1000 and t * 1e9 - 1000 <= w"
        " for x, y, t, w in zip(a, b, s, z)))",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out == "True"


def test_a_sleep_passes_on_both_clocks(fake):
    out = python(
        TOUCH + "a = time.monotonic(); time.sleep(0.25); print(time.monotonic() - a >= 0.25)\n"
        "touch(1); a = time.monotonic(); time.sleep(0.25); time.sleep(0); time.sleep(True)\n"
        "print(time.perf_counter_ns(), time.monotonic() - a >= 1.25)\n"
        "for wrong in -1, 1e300, float('nan'), 'x':\n"
        "    try: time.sleep(wrong)\n"
        "    except (ValueError, OverflowError, TypeError) as error: print(type(error).__name__)\n"
        "print(time.perf_counter_ns())",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out.split() == [
        *("True", "6250000000", "True"),
        *("ValueError", "OverflowError", "ValueError", "TypeError", "6250000000"),
    ]


def test_a_wait_for_another_process_is_real(fake):
    out = python(
        TOUCH + "touch(1); import subprocess, sys\n"
        "try: subprocess.run([sys.executable, '-c', 'import time; time.sleep(9)'], timeout=0.3)\n"
        "except subprocess.TimeoutExpired: print(time.perf_counter_ns())",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out == "5000000000"


def test_the_clocks_of_a_lock_between_processes_are_real(fake):
    out = python(
        TOUCH + "touch(1); inside = {'__name__': 'filelock._api', 'time': time}\n"
        "exec('a = time.perf_counter(), time.time(), time.perf_counter_ns(); time.sleep(0.1)', inside)\n"
        "exec('b = time.perf_counter(), time.time(), time.perf_counter_ns()', inside)\n"
        "print([one < other for one, other in zip(inside['a'], inside['b'])], time.perf_counter_ns())",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out == "[True, True, True] 5000000000"


def test_a_name_imported_before_the_touch_follows_it(fake):
    out = python(
        "from time import perf_counter as clock;" + TOUCH + "touch(1000000001); print(clock())",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out == "6.0"


def test_stand_ins_behave_as_the_built_ins(fake):
    out = python(
        TOUCH + "import pickle\nclass Held: clock = time.perf_counter\nHeld().clock()\n"
        "again = pickle.loads(pickle.dumps(time.time))\n"
        "print(again == time.time, time.time.__name__, time.perf_counter_ns.__name__)",
        preload=fake,
        PHANTORA_RUN_DIR="/nonexistent",
    )
    assert out == "True time perf_counter_ns"


def test_nothing_else_is_replaced(fake):
    names = (
        "import time; print(sorted(n for n in dir(time) if 'Simulated' in repr(getattr(time, n))))"
    )
    assert (
        python(names, preload=fake, PHANTORA_RUN_DIR="/nonexistent")
        == "['perf_counter', 'perf_counter_ns', 'sleep', 'time', 'time_ns']"
    )
    assert python(names, preload=fake) == "[]"  # outside a run
    assert python(names, PHANTORA_RUN_DIR="/nonexistent") == "[]"  # the library is not preloaded


@pytest.mark.parametrize("run", [{}, {"PHANTORA_RUN_DIR": "/nonexistent"}])
def test_the_users_own_sitecustomize_still_runs(tmp_path, fake, run):
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nMARK = 'theirs'\nSEEN = time.time.__name__\n"
    )
    out = python(
        "import sitecustomize as s; print(s.MARK, s.SEEN, s.__file__)",
        preload=fake,
        paths=(HOOK, tmp_path),
        **run,
    )
    assert out == f"theirs time {tmp_path}/sitecustomize.py"


@pytest.mark.parametrize("run", [{}, {"PHANTORA_RUN_DIR": "/nonexistent"}])
def test_a_run_inside_of_a_run_has_two_hooks(tmp_path, fake, run):
    """Both are on the path; each runs once, and then the user's own."""
    outer, own = tmp_path / "outer", tmp_path / "own"
    outer.symlink_to(HOOK)
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('theirs')\n")
    out = python("print('job')", preload=fake, paths=(HOOK, outer, own), **run)
    assert out.split() == ["theirs", "job"]


def test_start_up_outside_a_run_imports_nothing_heavy():
    loaded = python("import sys; print('ctypes' in sys.modules)")
    assert loaded == "False"


def test_peaks_are_reported_at_exit(fake, tmp_path):
    (tmp_path / "torch.py").write_text(
        "class cuda:\n"
        "    is_initialized = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 2)\n"
        "    max_memory_allocated = staticmethod(lambda d: [7, 11][d])\n"
        "    max_memory_reserved = staticmethod(lambda d: [30, 20][d])\n"
    )
    code = (
        "import atexit, ctypes, torch; atexit._run_exitfuncs(); peak = ctypes.CDLL(None).fake_peak\n"
        "peak.restype = ctypes.c_uint64; print(peak(0), peak(1))"
    )
    assert (
        python(code, preload=fake, paths=(HOOK, tmp_path), PHANTORA_RUN_DIR="/nonexistent")
        == "11 30"
    )


def test_an_interrupt_while_it_runs_ends_python_by_the_signal(tmp_path):
    """Not as a fatal error of Python with exit code 1."""
    (tmp_path / "ctypes.py").write_text("import os; os.kill(os.getpid(), 2)")
    environment = {**os.environ, "PYTHONPATH": f"{HOOK}:{tmp_path}", "PHANTORA_RUN_DIR": "/"}
    done = subprocess.run(
        [sys.executable, "-c", "print('the job')"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=interruptible,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(
    "rank_does, kept",
    [
        ("raise ValueError('own\\nmore')", "rank 3: ValueError: own"),
        ("raise KeyboardInterrupt", "rank 3: KeyboardInterrupt"),
        ("raise SystemExit(4)", None),
        ("assert subprocess.run([sys.executable, '-c', 'raise KeyError'], stderr=-3).returncode", None),
        ("import atexit; atexit.register(print, 1)", None),
    ],
)  # fmt: skip
def test_the_first_error_that_ends_a_rank_is_kept(fake, tmp_path, rank_does, kept):
    """Not that of a helper which a rank has started, nor a second one."""
    script = "import subprocess, sys\n" + rank_does
    python(
        "import os, subprocess, sys\nfor rank in '34': subprocess.run([sys.executable, '-c', "
        f"{script!r}], env={{**os.environ, 'RANK': rank}}, stderr=-3, stdout=-3)",
        preload=fake,
        PHANTORA_RUN_DIR=str(tmp_path),
    )
    file = tmp_path / "error"
    assert (file.read_text() if file.exists() else None) == kept


def test_a_full_disk_leaves_the_rank_its_own_message(fake, tmp_path):
    mount = f'mount -t tmpfs -o size=4k,nr_inodes=4 none "{tmp_path}"'
    room = mount + f' && head -c 4096 /dev/zero > "{tmp_path}/full"; exec "$@"'
    base = {k: v for k, v in os.environ.items() if not k.startswith(("PHANTORA", "LD_PRELOAD"))}
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", room, "sh", sys.executable, "-c", "raise ValueError('own')"],
        env=base
        | {"PYTHONPATH": str(HOOK), "LD_PRELOAD": str(fake), "RANK": "3"}
        | {"PHANTORA_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: own"
    assert "No space left" not in done.stderr
