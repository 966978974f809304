"""--leaders: who leads on which GPU. The machine's driver is the interceptor's own NVML, which
imitates one GPU or two."""

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from phantora_ns.config import load_gpu
from phantora_ns.config.device_conf import write_device_conf
from phantora_ns.launch import profiling
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.machine import gpus
from phantora_ns.launch.profiling import next_leader
from phantora_ns.launch.record.leaders import parse_leaders
from phantora_ns.launch.run.run_request import RunRequest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "phantora_ns" / "lib" / "libphantora.so"


@pytest.fixture
def machine(tmp_path):
    """Environment in which this machine seems to have GPUs: `machine(count, model)`."""

    def of(count=1, model="h200"):
        (tmp_path / "libnvidia-ml.so.1").symlink_to(LIBRARY)
        write_device_conf(load_gpu(model), tmp_path / "device.conf")
        return {
            "LD_PRELOAD": str(LIBRARY),
            "LD_LIBRARY_PATH": str(tmp_path),
            "PHANTORA_RUN_DIR": str(tmp_path),
            "PHANTORA_GPUS_PER_NODE": str(count),
        }

    return of


@pytest.mark.parametrize(
    "text, ranks", [("auto", None), ("none", ()), ("0", (0,)), ("3,1,3", (3, 1)), ("07", (7,))]
)
def test_leaders_are_read(text, ranks):
    assert parse_leaders(text, 8) == ranks


@pytest.mark.parametrize("text", ["", "all", "0,", "-1", "1.5", "0-3", "8", "0,9", " 1", "\u0663"])
def test_leaders_that_make_no_sense(text):
    with pytest.raises(UsageError, match=re.escape(f"--leaders {text}: ")):
        parse_leaders(text, 8)


def test_visible_devices_are_the_drivers():
    all_gpus = [gpus.RealGpu(i, f"GPU-{i}a{i}", "NVIDIA H200", "") for i in range(4)]
    for selection, indices in [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,0", [2, 0]),
        ("1,9,2", [1]),
        ("GPU-3", [3]),
        ("GPU-", []),
        ("0,0", [0]),
        ("-1", []),
        ("GPU-1a1,3", [1, 3]),
    ]:
        assert [gpu.index for gpu in gpus.visible(all_gpus, selection)] == indices, selection


def test_one_leader_at_a_time_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_LOCK_FOLDER", str(tmp_path))
    two = [gpus.RealGpu(i, f"GPU-{i}", "NVIDIA H200", "") for i in range(2)]
    locks = [gpus.GpuLock(two) for _ in range(3)]
    assert [lock.take() for lock in locks] == [two[0], two[1], None]
    locks[0].release()
    locks[0].release()
    assert locks[2].take() == two[0]
    for lock in locks:
        lock.release()


ONE = [gpus.RealGpu(0, "GPU-0", "NVIDIA H200", "")]


@pytest.fixture
def lock_folder(tmp_path, monkeypatch):
    """A folder for locks in the place of /tmp; returns it and the shared lock's path."""
    monkeypatch.setattr(gpus, "_LOCK_FOLDER", str(tmp_path))
    return tmp_path, tmp_path / "phantora-gpu-GPU-0.lock"


def test_the_locks_are_as_others_need_them_whatever_the_umask(lock_folder):
    folder, shared = lock_folder
    before = os.umask(0o077)
    try:
        lock = gpus.GpuLock(ONE)
        assert lock.take() == ONE[0] and lock.remark is None
    finally:
        os.umask(before)
    lock.release()
    assert shared.stat().st_mode & 0o777 == 0o644
    assert (folder / f"phantora-ns-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("thing", ["a FIFO", "a folder", "a link", "another user's"])
def test_what_stands_in_the_place_of_the_shared_lock_stops_nobody(lock_folder, monkeypatch, thing):
    _, shared = lock_folder
    if thing == "a FIFO":
        os.mkfifo(shared)
    elif thing == "a folder":
        shared.mkdir()
    elif thing == "a link":
        shared.symlink_to("/etc/passwd")
    else:  # root may open every file
        real = os.open

        def refuse(path, *rest):
            if path == str(shared):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return real(path, *rest)

        monkeypatch.setattr(os, "open", refuse)
    lock, second = gpus.GpuLock(ONE), gpus.GpuLock(ONE)
    assert lock.take() == ONE[0] and str(shared) in lock.remark
    assert second.take() is None  # this user's own runs still exclude one another
    lock.release()
    assert second.take() == ONE[0]
    second.release()


def test_another_user_who_holds_the_lock_is_waited_for_and_then_ignored(lock_folder, monkeypatch):
    _, shared = lock_folder
    with shared.open("w") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        lock = gpus.GpuLock(ONE)
        assert lock.take() is None
        monkeypatch.setattr(gpus, "SHARED_WAIT_S", 0.0)
        assert lock.take() == ONE[0] and f"another user's process has held {shared}" in lock.remark
    lock.release()


def test_a_private_folder_that_is_not_ours_is_not_used(lock_folder, tmp_path_factory):
    folder, _ = lock_folder
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / f"phantora-ns-{os.getuid()}").symlink_to(elsewhere)
    lock = gpus.GpuLock(ONE)
    assert lock.take() == ONE[0] and "is not a folder of this user's" in lock.remark
    assert list(elsewhere.iterdir()) == []
    lock.release()


def show(name):
    return ["--", sys.executable, "-Sc", f"import os; print(os.environ.get({name!r}))"]


@pytest.mark.parametrize(
    "options, env, words",
    [
        (["--leaders", "0"], {}, "this machine has no NVIDIA GPU"),
        (["--leaders", "two"], {}, "'two' is no rank"),
        (["--leaders", "2"], {}, "there is no rank 2 in a job of 2"),
        (["--leaders", "0,1"], {}, "in one run one rank leads"),
        (["--kernels", "/no/such.sqlite"], {}, "/no/such.sqlite: there is no such file"),
    ],
)
def test_what_cannot_lead_is_refused_in_one_line(launch, options, env, words):
    code, out, err = launch(*options, "--gpus-per-node", 2, "true", env=env).finish()
    assert (
        (code, out) == (2, "")
        and words in err
        and err.count("\n") == 1
        and err.startswith("phantora-ns: ")
    ), err


@pytest.mark.parametrize(
    "how",
    ["profile", "profile --leaders 0", "profile --leaders none", "profile -o /no/folder/x.sqlite"],
)
def test_profile_without_a_gpu_says_so(launch, how):
    code, out, err = launch(*how.split(), "torchrun", "--nproc-per-node", 2, "x.py").finish()
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(
        "phantora-ns: --leaders "
    ), err


def test_a_gpu_of_another_model_leads_nobody(launch, machine):
    env = machine(model="a100")
    code, out, err = launch(
        "--isolation", "none", "--gpus-per-node", 2, *show("PHANTORA_LEADER"), env=env
    ).finish()
    assert (code, out) == (0, "None\n"), err
    code, _, err = launch("--leaders", 0, "--gpus-per-node", 2, "true", env=env).finish()
    assert (
        code == 2
        and "this machine has NVIDIA A100-SXM4-80GB, and the cluster's GPU is NVIDIA H200" in err
    )


def test_hidden_gpus_lead_nobody(launch, machine):
    code, _, err = launch(
        "--leaders", 0, "--gpus-per-node", 2, "true", env=machine() | {"CUDA_VISIBLE_DEVICES": ""}
    ).finish()
    assert code == 2 and "CUDA_VISIBLE_DEVICES= hides this machine's GPUs" in err


@pytest.mark.parametrize(
    "options, leader", [([], "0"), (["--leaders", "1"], "1"), (["--leaders", "none"], "None")]
)
def test_a_gpu_of_the_simulated_model_is_led_on(launch, machine, options, leader):
    run = launch(
        "--isolation",
        "none",
        "--gpus-per-node",
        2,
        *options,
        *show("PHANTORA_LEADER"),
        env=machine(),
    )
    code, out, err = run.finish()
    assert (code, out) == (0, f"{leader}\n"), err


def test_what_the_leader_gets_back(launch, machine):
    env = machine(2) | {"TRITON_LIBCUDA_PATH": "/machine/cuda", "CUDA_VISIBLE_DEVICES": "1"}
    code, out, err = launch(
        "--isolation",
        "none",
        "--gpus-per-node",
        2,
        "--quiet",
        "--",
        sys.executable,
        "-Sc",
        "import json, os; print(json.dumps(dict(os.environ)))",
        env=env,
    ).finish()
    assert code == 0, err
    job = json.loads(out)
    restore = json.loads(job["PHANTORA_LEAD_RESTORE"])
    assert restore["TRITON_LIBCUDA_PATH"] == "/machine/cuda"
    assert restore["PHANTORA_RUN_DIR"] == env["PHANTORA_RUN_DIR"] != job["PHANTORA_RUN_DIR"]
    assert "CUDA_VISIBLE_DEVICES" not in job and job["PHANTORA_MACHINE_VISIBLE_DEVICES"].startswith(
        "GPU-"
    )
    library = f"{job['PHANTORA_RUN_DIR']}/lib/libphantora-leader.so"
    assert job["PHANTORA_LEAD_LIBRARY"] == library


def test_torchruns_agent_is_no_rank(launch, machine, tmp_path):
    (tmp_path / "torchrun").write_text("#!/bin/sh\necho ${RANK-unset} $PHANTORA_LEADER\n")
    (tmp_path / "torchrun").chmod(0o755)
    code, out, err = launch(
        "--isolation", "none", tmp_path / "torchrun", "x.py", env=machine() | {"RANK": "0"}
    ).finish()
    assert (code, out) == (0, "unset 0\n"), err


def leading(launch, env):
    """A run that leads until its standard input has a line, or ends."""
    run = launch(
        "--isolation",
        "none",
        "--gpus-per-node",
        1,
        "--quiet",
        "--",
        "sh",
        "-c",
        "echo leading; read line",
        env=env,
        stdin=subprocess.PIPE,
    )
    assert run.line() == "leading"
    return run


def test_a_second_run_waits_for_the_first(launch, machine, tmp_path):
    env = machine()
    (tmp_path / "go").touch()
    first = leading(launch, env)
    second = launch(
        "--isolation", "none", "--gpus-per-node", 1, "--quiet", "--", "echo", "my turn", env=env
    )
    assert (
        "waiting for another run's leader to end; on this machine's NVIDIA H200"
        in second.process.stderr.readline()
    )
    free = launch(
        "--isolation",
        "none",
        "--gpus-per-node",
        1,
        "--leaders",
        "none",
        "--quiet",
        "--",
        "echo",
        "no need",
        env=env,
    )
    assert free.finish()[:2] == (0, "no need\n")
    first.process.stdin.write("end\n")
    first.process.stdin.flush()
    assert second.finish()[:2] == (0, "my turn\n")
    first.process.wait(timeout=30)


def test_waiting_for_a_gpu_ends_with_ctrl_c(launch, machine):
    env = machine()
    first = leading(launch, env)
    second = launch(
        "--isolation", "none", "--gpus-per-node", 1, "--quiet", "--", "echo", "never", env=env
    )
    assert "waiting" in second.process.stderr.readline()
    os.killpg(second.process.pid, 2)
    code, out, _ = second.finish()
    assert (code, out) == (130, "")
    first.process.stdin.close()
    first.process.wait(timeout=30)


def test_who_leads_next():
    def report(unmeasured, **left):
        return {
            "leading": {"unmeasured_signatures": unmeasured},
            "ranks": [
                {"rank": int(name[1:]), "gpu_busy_ns": 1000_000, "gpu_unmeasured_ns": ns}
                for name, ns in left.items()
            ],
        }

    assert next_leader(report(3, r0=0, r1=5000, r2=9000, r3=9000), [0]) == 2
    assert next_leader(report(3, r0=0, r1=5000, r2=9000, r3=9000), [0, 2, 3]) == 1
    assert next_leader(report(3, r0=9000, r1=1000), [0]) is None  # 0.1 % is enough
    # estimated once, measured later in the same run
    assert next_leader(report(0, r0=0, r1=9000), [0]) is None
    assert next_leader(None, [0]) is None


def test_a_stage_of_a_profile_does_not_leave_the_report_of_the_one_before(tmp_path, monkeypatch):
    """Else a run that is ended by a signal would be said to have gone well."""
    report, codes = tmp_path / "report.json", iter((0, 143))

    def run(request, rank, record, announcement):
        assert not report.exists()
        code = next(codes)
        if code == 0:
            report.write_text("{}")
        return code, SimpleNamespace(report={})

    monkeypatch.setattr(profiling, "_run", run)
    first = RunRequest.__new__(RunRequest)
    monkeypatch.setattr(profiling, "replace", lambda request, **_: request)
    object.__setattr__(first, "report", report)
    object.__setattr__(first, "leading", SimpleNamespace(rank=0))
    object.__setattr__(first, "databases", ())
    monkeypatch.setattr(profiling, "_with", lambda into, databases: databases)
    assert profiling._record_kernels(first, tmp_path / "out", (0, 1)) == (143, [0])
    assert not report.exists()
