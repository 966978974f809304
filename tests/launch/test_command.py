"""What kind of command it is, what the nodes are told, and what is refused before anything
starts."""

import sys

import pytest

from phantora_ns.launch.command.job_command import parse_command
from phantora_ns.launch.command.multi_node import check_multi_node, foreign_names, split_endpoint
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.machine.environment import (
    Shape,
    hosts_file,
    job_environment,
    node_environments,
    replaced_variables,
)
from phantora_ns.launch.nodes import node_address

BIN = {"PATH": f"{sys.exec_prefix}/bin:/usr/bin:/bin"}


def parse(line, nnodes=None, env=None):
    return parse_command(line.split(), {**BIN, **(env or {})}, nnodes=nnodes)


@pytest.mark.parametrize("name", ["torchrun", "accelerate", "deepspeed"])
def test_launchers_are_found_in_an_environment_that_is_not_activated(monkeypatch, tmp_path, name):
    (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert parse_command([name, "train.py"], {"PATH": str(tmp_path / "elsewhere")}).program == str(
        tmp_path / name
    )


@pytest.mark.parametrize(
    "line, nodes, processes",
    [
        ("torchrun --nnodes 2 --nproc-per-node 4 train.py --mode fsdp", 2, 4),
        (f"{sys.exec_prefix}/bin/torchrun --nnodes=2 train.py", 2, 1),
        ("python -m torch.distributed.run --nnodes 3 train.py", 3, 1),
        ("python3 -u -X dev -W ignore -m torch.distributed.run --nproc-per-node=2 train.py", 1, 2),
        (f"{sys.executable} -mtorch.distributed.run --nproc_per_node gpu train.py", 1, None),
        (
            "python -m torch.distributed.launch --use-env --nnodes 2 --nproc_per_node=8 train.py",
            2,
            8,
        ),
    ],
)
def test_torchrun_in_all_its_forms(line, nodes, processes):
    command = parse(line)
    assert command.torchrun is not None and (command.nodes, command.processes_per_node) == (
        nodes,
        processes,
    )
    assert list(command.argv) == line.split()  # never changed


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --nnodes 2",
        "python -c torchrun",
        "bash -c torchrun",
        "python -m mine.torchrun",
        "python -u train.py -m torch.distributed.run",
        "true",
    ],
)
def test_other_commands_are_left_alone(line):
    command = parse(line, nnodes=3)
    assert command.torchrun is None and command.nodes == 3


def test_own_nnodes_serves_a_torchrun_that_does_not_say_it():
    command = parse("torchrun train.py", nnodes=2)
    assert command.nodes == 2
    assert node_environments(command, Shape(2, 8, True), {})[1]["PET_NNODES"] == "2"


@pytest.mark.parametrize(
    "line, nodes, interval",
    [
        ("torchrun x.py", 8, None),
        ("torchrun x.py", 16, "0.20"),
        ("torchrun x.py", 1000, "0.80"),
        ("torchrun --monitor-interval 5 x.py", 16, None),
    ],
)
def test_agents_of_many_nodes_look_at_their_workers_less_often(line, nodes, interval):
    environments = node_environments(parse(line, nnodes=nodes), Shape(nodes, 8, True), {})
    assert {one.get("PET_MONITOR_INTERVAL") for one in environments} == {interval}


@pytest.mark.parametrize(
    "line, nnodes, words",
    [
        ("torchrun --nnodes 3 x.py", 2, "give it once"),
        ("nonsense-xyz", None, "command not found"),
        ("torchrun --nnodes 2", None, "no script"),
        ("--nnodes 2 torchrun", None, "not a command"),
    ],
)
def test_commands_that_cannot_run(line, nnodes, words):
    with pytest.raises(UsageError, match=words):
        parse(line, nnodes)
    with pytest.raises(UsageError, match="no command"):
        parse_command([], BIN)


@pytest.mark.parametrize(
    "line, words",
    [
        ("torchrun --standalone --nnodes 2 x.py", "--standalone"),
        ("torchrun --nnodes 2 --node-rank 0 x.py", "--node-rank 0"),
        (
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint=localhost:29400 x.py",
            "meet itself alone",
        ),
        ("torchrun --nnodes 2 --master_addr 127.0.0.1 x.py", "meet itself alone"),
        ("torchrun --nnodes 2 --master-addr 10.1.2.3 x.py", "no address of the simulated cluster"),
        (
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint [fe80::1]:29400 x.py",
            "no address",
        ),
        (
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu17 --rdzv-conf timeout=9 x.py",
            "is_host",
        ),
    ],
)
def test_what_would_hang_on_several_nodes_is_refused(line, words):
    with pytest.raises(UsageError, match=words) as caught:
        check_multi_node(parse(line), 2, True)
    assert str(caught.value).count(";") >= 2
    check_multi_node(parse(line.replace("--nnodes 2", "--nnodes 1")), 1, True)


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nnodes 2 x.py",
        "torchrun --nnodes 2 --master-addr node-0 x.py",
        "torchrun --nnodes 2 --master-addr gpu17 x.py",
        "torchrun --nnodes 2 --master-addr 10.77.0.1 x.py",
        "torchrun --nnodes 2 --rdzv-backend c10d x.py",
        "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu17:1 --rdzv-conf is_host=1 x.py",
        "python x.py",
    ],
)
def test_what_works_is_not_refused(line):
    check_multi_node(parse(line), 2, True)


def test_names_need_namespaces():
    with pytest.raises(UsageError, match="--isolation none"):
        check_multi_node(parse("torchrun --nnodes 2 --master-addr node-0 x.py"), 2, False)
    check_multi_node(parse("torchrun --nnodes 2 --master-addr localhost x.py"), 2, False)


def test_static_rendezvous_variables():
    nodes = node_environments(parse("torchrun --nnodes 2 x.py"), Shape(2, 8, True), {})
    assert nodes[1] == {
        "PHANTORA_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "node-0",
        "PET_MASTER_PORT": "29500",
    }
    given = node_environments(
        parse("torchrun --nnodes 2 --master_addr gpu17 --master-port=1 x.py"), Shape(2, 8, True), {}
    )
    assert given[1] == {"PHANTORA_NODE": "1", "PET_NODE_RANK": "1"}


@pytest.mark.parametrize(
    "line, outer, threads",
    [
        ("torchrun --nproc-per-node 2 x.py", {}, "1"),
        ("torchrun --nproc-per-node gpu x.py", {}, "1"),
        ("torchrun --nproc-per-node 2 x.py", {"OMP_NUM_THREADS": "4"}, None),
        ("torchrun --nproc-per-node 1 x.py", {}, None),
        ("torchrun x.py", {}, None),
        ("python x.py", {}, None),
    ],
)
def test_threads_are_what_torchrun_would_choose(line, outer, threads):
    """Without its warning, which is longer than what a job prints before its first step."""
    nodes = node_environments(parse(line), Shape(1, 8, True), outer)
    assert nodes[0].get("OMP_NUM_THREADS") == threads


def test_c10d_rendezvous_variables():
    nodes = node_environments(
        parse("torchrun --nnodes 2 --rdzv-backend c10d x.py"), Shape(2, 8, True), {}
    )
    assert nodes[1]["PET_RDZV_ENDPOINT"] == "node-0:29400"
    named = node_environments(
        parse("torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint gpu17:9 x.py"),
        Shape(2, 8, True),
        {},
    )
    assert [node.get("PET_RDZV_CONF") for node in named] == ["is_host=1", "is_host=0"]
    assert "PET_RDZV_ENDPOINT" not in named[0]


def test_plain_command_variables():
    first, second = node_environments(parse("python x.py", 2), Shape(2, 4, True), {})
    assert second == {
        "PHANTORA_NODE": "1",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "NODE_RANK": "1",
        "NNODES": "2",
        "GPUS_PER_NODE": "4",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "node-0",
        "PET_MASTER_PORT": "29500",
    }
    single = node_environments(parse("python x.py", 2), Shape(2, 1, True), {"MASTER_PORT": "7"})[1]
    assert (single["RANK"], single["WORLD_SIZE"], single["LOCAL_RANK"], single["MASTER_PORT"]) == (
        "1",
        "2",
        "0",
        "7",
    )


def test_real_names_mean_node_0():
    command = parse("torchrun --nnodes 2 --master-addr gpu17 x.py")
    assert foreign_names(command, 2) == ["gpu17"]
    assert "10.77.0.1 node-0 gpu17\n" in hosts_file(command, 2)
    assert foreign_names(parse("torchrun --nnodes 2 --master-addr node-1 x.py"), 2) == []


def test_addresses_do_not_collide():
    addresses = [node_address(node, True) for node in range(1000)]
    assert (
        len(set(addresses)) == 1000
        and addresses[0] == "10.77.0.1"
        and addresses[255] == "10.77.1.0"
    )


@pytest.mark.parametrize(
    "endpoint, parts",
    [("a:1", ("a", "1")), ("a", ("a", "")), ("[::1]:2", ("::1", "2")), ("[::1]", ("::1", ""))],
)
def test_endpoints(endpoint, parts):
    assert split_endpoint(endpoint) == parts


def test_ranks_look_for_values_libraries_in_the_run_directory(tmp_path):
    """Also when there are none: the interceptor then says why."""
    env = job_environment({}, tmp_path, Shape(1, 1, True), None)
    assert env["PHANTORA_VALUES_LIB"] == str(tmp_path / "lib")


def test_the_environment_of_the_job(tmp_path):
    outer = {
        "PATH": "/bin",
        "LD_PRELOAD": "/x.so",
        "PYTHONPATH": "/mine",
        "CUDA_VISIBLE_DEVICES": "3",
        "GLOO_SOCKET_IFNAME": "ens5",
    }
    env = job_environment(outer, tmp_path, Shape(2, 4, True), None)
    assert (
        env["LD_PRELOAD"] == f"{tmp_path}/lib/libphantora.so:/x.so"
        and env["LD_LIBRARY_PATH"] == f"{tmp_path}/lib"
    )
    assert env["PYTHONPATH"] == f"{tmp_path}/startup:/mine" and "CUDA_VISIBLE_DEVICES" not in env
    assert env["GLOO_SOCKET_IFNAME"] == "eth0" and env["PATH"] == "/bin"
    assert len(replaced_variables(outer)) == 1 and not replaced_variables(
        {"CUDA_VISIBLE_DEVICES": ""}
    )
    bare = job_environment({}, tmp_path, Shape(2, 4, False), None)
    assert bare["OMP_WAIT_POLICY"] == "PASSIVE", "spinning would count as the job's host time"
    assert (
        job_environment({"OMP_WAIT_POLICY": "ACTIVE"}, tmp_path, Shape(2, 4, True), None)[
            "OMP_WAIT_POLICY"
        ]
        == "ACTIVE"
    )
    # an empty entry would mean the current folder
    assert bare["PYTHONPATH"].endswith("/startup") and ":" not in bare["LD_PRELOAD"]
