"""Every spelling of the options of DeepSpeed's launcher, against its own parser as the oracle, and
which cluster they mean."""

import json
import shlex
import subprocess
import sys

import pytest

from phantora_ns.launch.command import deepspeed
from phantora_ns.launch.command.job_command import parse_command
from phantora_ns.launch.command.multi_node import check_multi_node
from phantora_ns.launch.errors import UsageError

BIN = {"PATH": f"{sys.exec_prefix}/bin:/usr/bin:/bin"}
COMMANDS = [
    "train.py",
    "--num_gpus 4 train.py --num_gpus 7",
    "--num_gpus=4 --master_port 1234 train.py --deepspeed_config x.json",
    "--num_acc 4 train.py",
    "-H hosts -i w-0@w-1:0,2 --no_ssh --node_rank 1 --master_addr w-0 train.py",
    "-Hhosts -e=w-1:0 --no_ssh_check --launcher slurm train.py",
    "--module --no_local_rank -q --log_level error package.train -q",
    "--force_multi --save_pid --bind_cores_to_rank --bind_core_list 0-3 --no_python -- bash -c true",
]
# Importing the runner would import torch: its source defines the parser without either.
ORACLE = """
import argparse, ast, json, shlex, sys, importlib.util
source = open(importlib.util.find_spec("deepspeed").submodule_search_locations[0] + "/launcher/runner.py").read()
names = {"argparse": argparse, "PDSH_LAUNCHER": "pdsh", "TORCH_DISTRIBUTED_DEFAULT_PORT": 29500}
names["DLTS_HOSTFILE"] = "/job/hostfile"
functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
(function,) = [node for node in functions if node.name == "parse_args"]
exec(compile(ast.Module([function], []), "runner.py", "exec"), names)
made = []
class Parser(argparse.ArgumentParser):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        made.append(self)
names["argparse"] = type("module", (), {**vars(argparse), "ArgumentParser": Parser})
answers = [vars(names["parse_args"](shlex.split(line))) for line in json.load(sys.stdin)]
options = [[o.removeprefix("--"), a.nargs == 0] for a in made[0]._actions for o in a.option_strings if o[1] == "-"]
print(json.dumps([answers, options]))
"""


@pytest.fixture(scope="module")
def oracle():
    done = subprocess.run(
        [sys.executable, "-c", ORACLE],
        input=json.dumps(COMMANDS),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_list_of_options_is_deepspeeds(oracle):
    assert {name for name, is_flag in oracle[1] if is_flag} == deepspeed.FLAG_OPTIONS
    assert {name for name, is_flag in oracle[1] if not is_flag} == deepspeed.VALUE_OPTIONS


def test_every_spelling_is_read_as_deepspeed_reads_it(oracle):
    defaults = oracle[0][0]
    for line, expected in zip(COMMANDS, oracle[0], strict=True):
        given, script = deepspeed.LAUNCHER.read(shlex.split(line))
        assert script == expected["user_script"], line
        for name, value in given.items():
            assert (
                expected[name] is True
                if name in deepspeed.FLAG_OPTIONS
                else value == str(expected[name])
            ), (line, name)
        changed = {
            name
            for name in expected
            if not name.startswith("user_") and expected[name] != defaults[name]
        }
        assert changed <= given.keys(), line


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the cluster\nw-0 slots=8\n\nw-1 slots=8\nw-2 slots=8\n")
    return path


@pytest.mark.parametrize("program", ["deepspeed", "ds", "python -m deepspeed.launcher.runner"])
@pytest.mark.parametrize(
    "options, nodes, processes",
    [("", 1, None), ("--num_gpus 2", 1, 2), ("--include localhost:3", 1, None)],
)
def test_one_node(program, options, nodes, processes):
    line = f"{program} {options} train.py --num_gpus 9"
    command = parse_command(line.split(), BIN)
    assert command.deepspeed is not None and command.torchrun is None
    assert (command.nodes, command.processes_per_node) == (nodes, processes) and list(
        command.argv
    ) == line.split()


@pytest.mark.parametrize(
    "options, hosts, gpus",
    [
        ("", ["w-0", "w-1", "w-2"], 8),
        ("--num_nodes 2 --num_gpus 4", ["w-0", "w-1"], 4),
        ("--include w-2@w-0", ["w-0", "w-2"], 8),
        ("--include w-0:1,3", ["w-0"], 4),
        ("--exclude w-1@w-2", ["w-0"], 8),
    ],
)
def test_a_hostfile_says_the_nodes(hostfile, options, hosts, gpus):
    options = deepspeed.parse_deepspeed(f"--hostfile {hostfile} {options} train.py".split())
    assert list(options.hosts) == hosts and deepspeed.node_count(options) == len(hosts)
    assert deepspeed.processes_per_node(options) == gpus and options.spreads == (len(hosts) > 1)


@pytest.mark.parametrize(
    "options, words",
    [
        ("--num_nodes 2 train.py", "needs a hostfile"),
        ("--hostfile /nonexistent/hosts --num_nodes 2 train.py", "needs a hostfile"),
        ("--hostfile HOSTS --include w-9 train.py", "no host"),
        ("--hostfile HOSTS --exclude w-0:0 train.py", "as many"),
        ("--hostfile HOSTS --include w-0 --num_gpus 2 train.py", "exclude each other"),
        ("--num_gpus four train.py", "not a number"),
        ("--no 1 train.py", "could be"),
        ("--nproc-per-node 8 train.py", "unknown deepspeed option"),
        ("--num_gpus", "lacks its value"),
        ("--num_gpus 2", "no script"),
        ("--hostfile HOSTS train.py", "no ssh server"),
        (
            "--hostfile HOSTS --no_ssh --node_rank 1 train.py",
            "--node_rank 1 would give all 3 nodes",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_a_cure(hostfile, options, words):
    with pytest.raises(UsageError, match=words):
        command = parse_command(
            ["deepspeed", *options.replace("HOSTS", str(hostfile)).split()], BIN
        )
        check_multi_node(command, command.nodes, True)


@pytest.mark.parametrize("slots", ["99999999999999", "9" * 5000, "many"])
def test_slots_that_no_server_has_are_refused(hostfile, slots):
    """A list of that many filled the memory."""
    hostfile.write_text(f"w-0 slots={slots}\n")
    with pytest.raises(UsageError, match="is no new host with slots") as caught:
        deepspeed.parse_deepspeed(["--hostfile", str(hostfile), "train.py"])
    assert len(str(caught.value)) < 1000


def test_on_several_nodes_each_would_run_its_own_job():
    command = parse_command(["deepspeed", "train.py"], BIN, nnodes=2)
    with pytest.raises(UsageError, match="a job of its own on each of the 2 nodes"):
        check_multi_node(command, 2, True)
