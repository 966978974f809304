"""Why it exists: the one process that is to lead must start itself anew with the leader's library,
once, and nobody else may."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "phantora_ns" / "startup"
SHOW = (
    "import json, os, sys; print(json.dumps([dict(os.environ), open('/proc/self/environ').read().split(chr(0)),"
    " sys.argv, os.getpid()]))"
)


@pytest.fixture
def run(tmp_path):
    """Runs Python code as a rank of a run whose rank 1 is to lead; returns what it printed,
    decoded."""
    for name in ("libphantora.so", "libphantora-leader.so", "libother.so"):
        source = Path(__file__).with_name("fake_interceptor.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, source], check=True)
    (tmp_path / "lib").mkdir()

    def start(code, *arguments, **environment):
        base = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PHANTORA", "LD_", "TRITON", "CUDA", "RANK"))
        }
        base |= {
            "PYTHONPATH": str(HOOK),
            "PHANTORA_RUN_DIR": str(tmp_path),
            "PHANTORA_LEADER": "1",
            "PHANTORA_NODE": "0",
            "LD_PRELOAD": f"{tmp_path}/libphantora.so:{tmp_path}/libother.so",
            "LD_LIBRARY_PATH": f"{tmp_path}/lib:/their/own",
            "TRITON_LIBCUDA_PATH": f"{tmp_path}/lib",
            "PHANTORA_LEAD_LIBRARY": f"{tmp_path}/libphantora-leader.so",
            "PHANTORA_LEAD_RESTORE": json.dumps(
                {"TRITON_LIBCUDA_PATH": None, "PHANTORA_NODE": "7"}
            ),
            **environment,
        }
        done = subprocess.run(
            [sys.executable, *arguments, "-c", code, "first", "second word"],
            env=base,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return start


def test_the_rank_that_leads_gets_the_machines_environment(run, tmp_path):
    inside, words, argv, pid = run(SHOW, "-u", RANK="1")
    began = dict(word.split("=", 1) for word in words if word)
    assert began["LD_PRELOAD"] == f"{tmp_path}/libphantora-leader.so:{tmp_path}/libother.so"
    assert began["LD_LIBRARY_PATH"] == "/their/own"
    assert "TRITON_LIBCUDA_PATH" not in began and began["PHANTORA_NODE"] == "7"
    assert began["PHANTORA_LEAD_NODE"] == "0" and began["PHANTORA_LEAD_RUN_DIR"] == str(tmp_path)
    assert began["PHANTORA_LEAD_PID"] == str(pid) and argv == ["-c", "first", "second word"]
    assert inside["PHANTORA_LEAD_RUN_DIR"] == str(tmp_path)


@pytest.mark.parametrize(
    "environment", [{}, {"RANK": "0"}, {"RANK": "1", "PHANTORA_LEAD_PID": "1"}]
)
def test_nobody_else_does(run, tmp_path, environment):
    inside, words, _, _ = run(SHOW, **environment)
    assert inside["LD_PRELOAD"] == f"{tmp_path}/libphantora.so:{tmp_path}/libother.so"
    assert not (tmp_path / "leader.lock").exists()


def test_the_leader_holds_the_lock_for_its_life_and_its_children_are_simulated(run, tmp_path):
    code = f"""
import json, os, subprocess, sys
take = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
command = [sys.executable, "-S", "-c", take, {str(tmp_path / "leader.lock")!r}]
taken = subprocess.run(command, capture_output=True).returncode == 0
child = subprocess.run([sys.executable, "-c", {SHOW!r}], capture_output=True, text=True, check=True).stdout
print(json.dumps([not taken, json.loads(child)[0], os.get_inheritable(int(os.environ["PHANTORA_LEAD_LOCK"]))]))
"""
    locked, child, inherited = run(code, RANK="1")
    assert locked and not inherited
    assert child["LD_PRELOAD"] == f"{tmp_path}/libphantora.so:{tmp_path}/libother.so"
    assert (
        child["LD_LIBRARY_PATH"] == f"{tmp_path}/lib:/their/own"
        and child["RANK"] == child["PHANTORA_LEADER"]
    )
    with open(tmp_path / "leader.lock", "r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again after its end


def test_a_second_process_with_the_same_rank_stays_simulated(run, tmp_path):
    with open(tmp_path / "leader.lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        inside, _, _, _ = run(SHOW, RANK="1")
    assert (
        inside["LD_PRELOAD"].startswith(f"{tmp_path}/libphantora.so")
        and "PHANTORA_LEAD_PID" not in inside
    )


def test_what_keeps_it_from_leading_is_one_line(tmp_path):
    env = {
        **os.environ,
        "PYTHONPATH": str(HOOK),
        "PHANTORA_RUN_DIR": str(tmp_path / "gone"),
        "PHANTORA_LEADER": "0",
        "RANK": "0",
        "PHANTORA_LEAD_LIBRARY": "/x/libphantora-leader.so",
        "PHANTORA_LEAD_RESTORE": "{}",
    }
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 70 and done.stdout == ""
    assert (
        done.stderr.startswith("phantora-ns: rank 0 cannot become the leader: ")
        and done.stderr.count("\n") == 1
    )
