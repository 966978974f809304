"""Real nodes: what each sees of itself, of the others, and of the machine; commands' ends; torchrun
across nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora_ns.config import load_gpu

HERE = Path(__file__).resolve().parent
INTERPRETER = [sys.executable, "-I"]

# each node writes one line of JSON; node 1 first proves that it reaches node 0 on the port that
# both have bound
LOOK = r"""
import json, os, pathlib, socket, time
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
inherited = [os.readlink(link) for link in links if os.path.lexists(link)]
node = int(os.environ["NODE_RANK"])
server = socket.create_server(("", 4711))
pathlib.Path("/dev/shm/mine").write_text(str(node))
if node == 0:
    server.settimeout(30)
    peer, address = server.accept()
    greeting = peer.recv(9).decode()
    peer.sendall(b"bye")
else:
    while True:
        try:
            peer = socket.create_connection(("node-0", 4711), timeout=30)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    peer.sendall(socket.gethostname().encode())
    assert peer.recv(3) == b"bye"
    address, greeting = peer.getsockname(), ""
os.close(os.openpty()[0])
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0phantora-test")  # would clash in one network namespace
print(json.dumps({
    "host": socket.gethostname(), "shm": sorted(os.listdir("/dev/shm")), "pid": os.getpid(), "peer": address[0],
    "greeting": greeting, "uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "proc": os.readlink("/proc/self"), "gpus": sorted(n for n in os.listdir("/dev") if n.startswith("nvidia")),
    "name": socket.gethostbyaddr(address[0])[0], "stdin": os.readlink("/proc/self/fd/0"),
    "fds": inherited,
    "run_dir": sorted(os.listdir(os.environ["PHANTORA_RUN_DIR"])), "writes": open("/dev/null", "w").write("x"),
    "nodes": {name: os.readlink(f"/proc/self/ns/{name}")
              for name in ("net", "pid", "uts", "ipc", "mnt", "user")}}), flush=True)
"""


@pytest.mark.parametrize("nodes", [1, 3])
def test_ranks_are_told_of_the_slowest_gpus_of_all_nodes(launch, nodes):
    code, out, err = launch(
        *("--nnodes", nodes, "--gpus-per-node", 1, "--"),
        *("sh", "-c", "grep variation $PHANTORA_RUN_DIR/device.conf"),
    ).finish()
    assert code == 0, err
    told = {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}
    assert list(told.values()) == load_gpu("h200").power.variation(nodes)


@pytest.mark.parametrize("as_nobody", [False, True], ids=["as me", "as nobody"])
def test_nodes_are_machines_of_their_own(launch, as_nobody):
    run = launch(
        "--nnodes",
        2,
        "--gpus-per-node",
        2,
        "--",
        *INTERPRETER,
        "-c",
        LOOK,
        as_nobody=as_nobody,
        cwd="/",
    )
    code, out, err = run.finish()
    assert code == 0, err
    nodes = sorted(map(json.loads, out.splitlines()), key=lambda node: node["host"])
    assert [node["host"] for node in nodes] == ["node-0", "node-1"]
    assert nodes[0]["greeting"] == "node-1" and nodes[0]["peer"] == nodes[1]["peer"] == "10.77.0.2"
    for node in nodes:
        uid = 65534 if as_nobody and os.geteuid() == 0 else os.geteuid()
        assert node["uid"] == uid and node["cwd"] == "/"
        assert node["shm"] == ["mine"] and node["interfaces"] == ["eth0", "lo"]
        assert node["name"] == "node-1"
        assert {"device.conf", "hosts", "lib", "ranks", "run.json"} <= set(node["run_dir"])
        if not Path("/dev/nvidiactl").exists():
            assert node["gpus"] == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
        assert node["fds"] == []  # nothing of the launcher's
    for kind in ("net", "pid", "uts", "ipc", "mnt"):
        assert nodes[0]["nodes"][kind] != nodes[1]["nodes"][kind]
    assert nodes[0]["nodes"]["user"] == nodes[1]["nodes"]["user"]
    assert nodes[1]["stdin"] == "/dev/null"


def test_without_isolation_nodes_are_loopback_addresses(launch):
    script = """import os, socket
socket.create_server((os.environ["PET_LOCAL_ADDR"], 4712))
print(os.environ["MASTER_ADDR"])"""
    code, out, err = launch(
        "--isolation", "none", "--nnodes", 3, "--", *INTERPRETER, "-c", script
    ).finish()
    assert code == 0, err
    assert out.split() == ["127.77.0.1"] * 3


@pytest.mark.parametrize("isolation", ["namespaces", "none"])
@pytest.mark.parametrize(
    "command, code, who",
    [
        ("exit 0", 0, None),
        ("exit 7", 7, "job"),
        ("kill -9 $$", 137, "job"),
        ("kill -11 $$", 139, "job"),
    ],
)
def test_the_exit_code_is_the_jobs(launch, isolation, command, code, who):
    got, out, err = launch(
        "--isolation",
        isolation,
        "--nnodes",
        2,
        "--",
        "sh",
        "-c",
        f"echo out; echo err >&2; {command}",
    ).finish()
    assert got == code and out == "out\nout\n" and err.count("err\n") == 2
    assert f"ended: {{'exit_code': {code}, 'failed_by': {who!r}, 'ended_by': None}}" in err
    # the summary, and one message for a failure
    assert err.count("phantora-ns:") == (1 if code == 0 else 2)


def test_one_node_failing_ends_the_others_and_its_code_wins(launch):
    script = 'if [ $NODE_RANK = 1 ]; then exit 5; fi; trap "" TERM; while :; do sleep 1; done'
    code, _, err = launch("--nnodes", 3, "--", "sh", "-c", script).finish()
    assert code == 5 and "on node-1" in err


def test_what_a_command_leaves_running_ends_with_it(launch):
    for isolation in ("namespaces", "none"):
        code, _, err = launch(
            "--isolation",
            isolation,
            "--",
            "sh",
            "-c",
            "setsid sleep 1000 & setsid sh -c 'sleep 999 & wait' & exit 0",
        ).finish()
        assert code == 0, err


def test_stdin_reaches_the_first_node(launch):
    run = launch(
        "--nnodes", 2, "--", "sh", "-c", "cat; echo from $NODE_RANK", stdin=subprocess.PIPE
    )
    run.process.stdin.write("hello\n")
    run.process.stdin.close()
    run.process.stdin = None
    code, out, _ = run.finish()
    assert code == 0 and sorted(out.split("\n")) == ["", "from 0", "from 1", "hello"]


def test_odd_arguments_and_variables_arrive_as_they_are(launch):
    odd = "a b\n\\n\t'\"$x \udcff"
    run = launch(
        "--",
        *INTERPRETER,
        "-c",
        "import os, sys; print(ascii(sys.argv[1:] + [os.environ['ODD']]))",
        odd,
        "",
        "--nnodes",
        env={"ODD": odd},
    )
    code, out, err = run.finish()
    assert code == 0, err
    assert out == ascii([odd, "", "--nnodes", odd]) + "\n"


def test_many_nodes(launch):
    code, out, err = launch(
        "--nnodes", 64, "--gpus-per-node", 8, "--", "sh", "-c", "echo $(hostname)"
    ).finish()
    assert code == 0, err
    assert sorted(out.split()) == sorted(f"node-{node}" for node in range(64))


def test_a_run_directory_is_kept_on_request(launch):
    run = launch("--keep-run-dir", "true")
    code, _, err = run.finish()
    assert code == 0
    (kept,) = run.folder.glob("kept-*")
    assert f"run directory kept; {kept}" in err and (kept / "hub.json").exists()


def test_the_report_is_written_whole(launch, tmp_path):
    for _ in range(2):  # the second one replaces the first
        code, _, _ = launch(
            "--report", tmp_path / "report.json", "--quiet", "sh", "-c", "exit 4"
        ).finish()
        assert code == 4
        assert json.loads((tmp_path / "report.json").read_text()) == {
            "exit_code": 4,
            "failed_by": "job",
            "ended_by": None,
            "host_time": {"mode": "auto", "measured": None, "time_share": {}},
        }
    assert os.listdir(tmp_path) == ["report.json"]


STATIC = "torchrun --nnodes 2 --nproc_per_node=2"
C10D = "python -m torch.distributed.run --nnodes=2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint=node-0:29500"
REAL_NAME = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=trainer17:29500"
LOOPBACK = "--isolation none torchrun --nnodes 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, workers, as_nobody",
    [(STATIC, 2, False), (C10D, 2, True), (REAL_NAME, 1, False), (LOOPBACK, 1, False)],
    ids=["static", "c10d as nobody", "c10d by a real host's name", "no isolation"],
)
def test_torchrun_meets_across_nodes(launch, command, workers, as_nobody):
    run = launch(
        *command.split(), HERE / "gloo_job.py", as_nobody=as_nobody, env={"OMP_NUM_THREADS": "1"}
    )
    code, out, err = run.finish(timeout=120)
    assert code == 0, err
    lines = sorted(out.splitlines())
    ranks = 2 * workers
    assert len(lines) == ranks and all(
        f"sum={ranks * (ranks + 1) // 2} world={ranks}" in line for line in lines
    )
    if command != LOOPBACK:
        assert [line.split()[0] for line in lines] == ["host=node-0"] * workers + [
            "host=node-1"
        ] * workers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may map more than itself")
def test_root_keeps_every_user_it_had(launch):
    code, out, err = launch("cat", "/proc/self/uid_map").finish()
    assert code == 0, err
    outer = Path("/proc/self/uid_map").read_text().split()
    assert out.split() == [outer[0], outer[0], outer[2]]


def test_an_ordinary_user_is_itself_and_nobody_else(launch):
    code, out, err = launch("cat", "/proc/self/uid_map", as_nobody=True).finish()
    uid = "65534" if os.geteuid() == 0 else str(os.geteuid())
    assert (code, out.split()) == (0, [uid, uid, "1"]), err
