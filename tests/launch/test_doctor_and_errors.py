"""Machines that refuse namespaces get the reason and the cure; wrong requests get one line and exit
code 2."""

import ctypes
import os
import resource
import shutil
import struct
import subprocess
import sys

import pytest

# the limits are per user namespace, so a namespace of the test's own can be given hostile ones
HOSTILE = {
    "no user namespaces": "echo 0 >/proc/sys/user/max_user_namespaces",
    "no network namespaces": "echo 0 >/proc/sys/user/max_net_namespaces",
    "no mount namespaces": "echo 0 >/proc/sys/user/max_mnt_namespaces",
    "no PID namespaces": "echo 0 >/proc/sys/user/max_pid_namespaces",
    "covered proc": "mount -t tmpfs none /proc/fs",
}


def inside(setup, command):
    if not shutil.which("unshare"):
        pytest.skip("needs unshare")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "true"],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("needs a user namespace to prepare a hostile one")
    script = f'set -e; mount --make-rprivate /; {setup}; exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", *command]


@pytest.mark.parametrize(
    "machine, words",
    [
        (
            "no user namespaces",
            ["FAILED  creating a user namespace", "sudo sysctl -w user.max_user_namespaces=15000"],
        ),
        (
            "no network namespaces",
            ["ok      uid_map", "FAILED  creating a network namespace", "user.max_net_namespaces"],
        ),
        ("no mount namespaces", ["ok      IPC namespace", "FAILED  creating a mount namespace"]),
        ("no PID namespaces", ["ok      network namespace", "FAILED  creating a PID namespace"]),
    ],
)
def test_the_doctor_names_the_step_the_reason_and_the_cure(launch, machine, words):
    code, out, err = launch(
        "doctor", within=lambda command: inside(HOSTILE[machine], command)
    ).finish()
    assert code == 1, out + err
    for text in words:
        assert text in out
    assert out.count("FAILED  ") == 1 and "cannot run jobs here yet" in out


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def test_ranks_that_need_more_open_files_than_there_can_be_are_refused(launch):
    code, out, err = launch(
        *("torchrun", "--nproc-per-node", 8, "--nnodes", 2, "x.py"), preexec_fn=few_files
    ).finish()
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "16 ranks need 112 open files" in err and "ulimit -Hn" in err


def test_the_doctor_says_whether_ranks_are_likely_to_fit(launch):
    code, out, err = launch("doctor", "--ranks", 1).finish()
    assert (code, err) == (0, "") and "ok      1 ranks: about 0.4 GB of memory" in out
    code, out, err = launch("doctor", "--ranks", 100_000).finish()
    few = next(line for line in out.splitlines() if "100000 ranks" in line)
    assert few.startswith(("note    ", "FAILED  ")) and code == few.startswith("FAILED")
    code, out, err = launch("doctor", "--ranks", 100, preexec_fn=few_files).finish()
    assert code == 1 and "FAILED  100 ranks need 364 open files" in out


def test_the_doctor_is_content_with_this_machine(launch):
    code, out, err = launch("doctor").finish()
    assert (code, err) == (0, ""), out
    assert all(line.startswith("ok      ") for line in out.splitlines()[:-1])
    for step in (
        "user namespace",
        "uid_map",
        "network",
        "PID",
        "UTS",
        "IPC",
        "mount",
        "bridge",
        "veth",
        "/dev/shm",
        "libzmq",
        "torch",
        "hub",
    ):
        assert step in out


def test_a_run_on_a_machine_without_namespaces_says_the_same(launch):
    run = launch(
        "--nnodes",
        2,
        "--",
        "echo",
        "job",
        within=lambda command: inside(HOSTILE["no user namespaces"], command),
    )
    code, out, err = run.finish()
    assert code == 70 and out == "" and "'failed_by': 'launcher'" in err
    assert (
        "cannot build the cluster: creating a user namespace: No space left on device; user "
        "namespaces are switched off: sudo" in err
    )


def test_without_isolation_such_a_machine_works(launch):
    run = launch(
        "--isolation",
        "none",
        "--nnodes",
        2,
        "--",
        "echo",
        "job",
        within=lambda c: inside(HOSTILE["no user namespaces"], c),
    )
    code, out, err = run.finish()
    assert (code, out) == (0, "job\njob\n"), err


def test_where_proc_cannot_be_mounted_the_machines_own_stays(launch):
    covered = {"within": lambda command: inside(HOSTILE["covered proc"], command)}
    code, out, _ = launch("doctor", **covered).finish()
    assert code == 0 and "ok      /proc (the machine's own" in out
    code, out, err = launch(
        "--nnodes", 2, "--", "sh", "-c", "test -e /proc/self/stat && hostname", **covered
    ).finish()
    assert code == 0 and sorted(out.split()) == ["node-0", "node-1"], err


def refuse_unshare():
    """As Docker's default seccomp profile: unshare(2) is EPERM. (linux/filter.h,
    linux/seccomp.h)"""
    number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in [
            (0x20, 0, 0, 0),
            (0x15, 0, 1, number),
            (0x06, 0, 0, 0x00050001),
            (0x06, 0, 0, 0x7FFF0000),
        ]
    )
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    assert libc.prctl(22, 2, header, 0, 0) == 0, os.strerror(ctypes.get_errno())


def test_a_seccomp_filter_is_named(launch):
    code, out, _ = launch("doctor", preexec_fn=refuse_unshare).finish()
    assert code == 1
    assert (
        "FAILED  creating a user namespace: Operation not permitted; a seccomp filter refuses it"
        in out
    )
    assert "--security-opt seccomp=unconfined" in out


WRONG = {
    "unknown option": (["--clsuter", "h200-rail", "true"], "Did you mean '--cluster'?"),
    "unknown cluster": (["--cluster", "h201-rail", "true"], "h200-rail"),
    "cluster file that is not there": (["--cluster", "./no.toml", "true"], "no.toml"),
    "bad scale": (["--host-scale", "-1", "true"], "above 0"),
    "bad sync": (["--sync", "hopeful", "true"], "conservative"),
    "no nodes": (["--nnodes", "0", "true"], "--nnodes"),
    "elastic": (["torchrun", "--nnodes", "1:4", "x.py"], "--nnodes 4"),
    "too many workers": (["torchrun", "--nnodes", "2", "--nproc-per-node", "9", "x.py"], "9"),
    "too many nodes": (["--nnodes", "1001", "true"], "at most 1000"),
    "standalone": (["torchrun", "--nnodes", "2", "--standalone", "x.py"], "--standalone"),
    "no such command": (["no-such-command-xyz"], "command not found"),
    "report in no folder": (["--report", "/no/such/folder/r.json", "true"], "does not exist"),
    "one server, two nodes": (
        ["--cluster", "h200-1x8", "--nnodes", "2", "true"],
        "the file says 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests(launch, case):
    arguments, words = WRONG[case]
    code, out, err = launch(*arguments).finish()
    assert code == 2 and out == ""
    assert words in err and err.startswith("phantora-ns: ") and err.count("\n") == 1
    assert err.count(";") >= 1  # what; what to do


def test_a_current_folder_that_nodes_cannot_see(launch, tmp_path):
    folder = f"/dev/shm/phantora-test-{os.getpid()}"
    os.mkdir(folder)
    try:
        code, _, err = launch("true", cwd=folder).finish()
        assert code == 2 and "/dev/shm of their own" in err
    finally:
        os.rmdir(folder)


def test_a_command_that_cannot_be_executed_is_the_jobs_failure(launch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    code, _, err = launch(broken).finish()
    assert (
        code == 126
        and f"cannot run {broken}: Exec format error; on node-0" in err
        and "'failed_by': 'job'" in err
    )


def test_a_hub_that_does_not_start_is_named(launch):
    code, _, err = launch("true", env={"PHANTORA_TEST_HUB": "dies"}).finish()
    assert (
        code == 70
        and "the hub did not start (exit code 3); its message, if it had one, is above" in err
    )
    assert err.count("phantora-ns:") == 1


def test_help_and_version(launch):
    code, out, _ = launch("--help").finish()
    assert "\n  phantora-ns torchrun --nnodes 2 --nproc-per-node 8 train.py\n" in out
    assert code == 0 and "phantora-ns torchrun --nnodes 2" in out and "--host-time [" in out
    code, out, _ = launch("--version").finish()
    assert code == 0 and out.startswith("phantora-ns ")
    code, out, _ = launch("clusters").finish()
    assert code == 0 and "h200-rail" in out and "(default)" in out


@pytest.mark.parametrize(
    "spec, words",
    [
        ("hello", "expected 'phantora-sandbox 1'"),
        ("phantora-sandbox 1\nnode a", "NAME ADDRESS/PREFIX"),
        ("phantora-sandbox 1\nnode a 10.0.0.1/99", "not a number from 1 to 32"),
        ("phantora-sandbox 1\ncolour red", "unknown key 'colour'"),
        ("phantora-sandbox 1\nisolation some", "'namespaces' or 'none'"),
        ("phantora-sandbox 1\ncwd /", "lacks one of"),
        ("phantora-sandbox 1\ncwd", "has no value"),
        ("", "lacks one of"),
    ],
)
def test_the_helper_refuses_a_broken_spec(sandbox_binary, spec, words):
    done = subprocess.run(
        [sandbox_binary, "run", "-"], input=spec, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125 and words in done.stderr and done.stdout == ""


def test_the_helper_works_by_hand(sandbox_binary):
    spec = f"phantora-sandbox 1\ncwd /\nprogram {sys.executable}\narg {sys.executable}\narg -Ic\n"
    spec += "arg import socket; print(socket.gethostname())\n"
    done = subprocess.run(
        [sandbox_binary, "run", "-"],
        input=spec + "node solo 10.1.0.1/24\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "solo\n",
    ) and "phantora-sandbox: exit 0 0" in done.stderr
    assert subprocess.run([sandbox_binary], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("command", [(), ("profile",)], ids=["run", "profile"])
def test_a_run_inside_of_a_job_is_refused(phantora, command):
    """Its GPUs are simulated. This used to end in a RecursionError of Python's start."""
    own = [sys.executable, "-m", "phantora_ns", *command, "--", "true"]
    done = phantora("--quiet", "--nnodes", 1, "--gpus-per-node", 1, "--", *own)
    assert done.returncode == 2, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("phantora-ns:")]
    assert len(ours) == 2 and "inside of its own job" in ours[0] and "exit code 2" in ours[1]
    assert "Error" not in done.stderr
