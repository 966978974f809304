"""Every spelling of torchrun's options, against torch's own parser as the oracle."""

import json
import shlex
import subprocess
import sys

import pytest

from phantora_ns.launch.command import torchrun
from phantora_ns.launch.command.torchrun import node_count, parse_torchrun, processes_per_node
from phantora_ns.launch.errors import UsageError
from tests.torch_release import torch_release

COMMANDS = [
    "train.py",
    "--nnodes=2 --nproc-per-node=4 train.py",
    "--nnodes 2 --nproc-per-node 4 train.py",
    "--nnodes=2 --nproc_per_node 4 train.py --nnodes 7",
    "--nnodes 2:2 --nproc_per_node=4 train.py -- --nnodes 7",
    "--nnode 2 --nproc-per-node gpu train.py",
    "--nnodes 1 --standalone --nproc-per-node auto train.py",
    "--nnodes 1 --max_restarts 3 --rdzv-id=7 --rdzv_backend c10d --rdzv-endpoint node-0:29500 train.py",
    "--rdzv_backend=c10d --rdzv_endpoint=[::1]:29500 --nnodes 2 train.py --lr 0.1",
    "--master_addr node-0 --master-port 1234 --node_rank 0 -m package.train --nnodes 7",
    "-m package.train",
    "-r3 -t 3 --log-dir logs --tee 1 train.py",
    "-r=3 --no-python bash -c 'nnodes'",
    "--redirects 0:1,1:2 --role worker --start-method spawn --local-addr 10.77.0.1 train.py",
    "--run-path --monitor_interval 0.5 train.py",
    "--local-ranks-filter 0 --log-dir /tmp/x --nnodes 3 -- train.py --x",
    "--master_p 1 train.py",
]
ORACLE = """
import json, shlex, sys
from torch.distributed.run import get_args_parser
answers = []
for line in json.load(sys.stdin):
    args = vars(get_args_parser().parse_args(shlex.split(line)))
    answers.append([args["training_script"], {k: v for k, v in args.items() if not k.startswith("training_script")}])
actions = [[a.dest, a.nargs == 0] for a in get_args_parser()._actions if a.option_strings]
print(json.dumps([answers, actions], default=str))
"""


@pytest.fixture(scope="module")
def oracle():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORACLE],
        input=json.dumps(COMMANDS),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


# option: the first release that has it
SINCE = {
    "duplicate_stderr_filters": (2, 10),
    "duplicate_stdout_filters": (2, 10),
    "signals_to_handle": (2, 10),
    "virtual_local_rank": (2, 10),
    "shutdown_timeout": (2, 12),
    "log_line_prefix_template": (2, 14),
    "print_completion": (2, 14),
}


def test_the_list_of_options_is_torchs(oracle):
    flags = {dest for dest, is_flag in oracle[1] if is_flag}
    values = {dest for dest, is_flag in oracle[1] if not is_flag}
    assert values <= torchrun.VALUE_OPTIONS and flags <= torchrun.FLAG_OPTIONS
    later = {option for option, release in SINCE.items() if torch_release() < release}
    assert torchrun.VALUE_OPTIONS - values == later & torchrun.VALUE_OPTIONS
    # the other is torch.distributed.launch's own
    assert torchrun.FLAG_OPTIONS - flags == later & torchrun.FLAG_OPTIONS | {"use_env"}


def test_every_spelling_is_read_as_torch_reads_it(oracle):
    defaults = oracle[0][0][1]
    assert COMMANDS[0] == "train.py"
    for line, (script, expected) in zip(COMMANDS, oracle[0], strict=True):
        options = parse_torchrun(shlex.split(line), {})
        assert options.script == script, line
        for name, value in options.given.items():
            wanted = expected[name]
            assert (wanted is True) if name in torchrun.FLAG_OPTIONS else value == str(wanted), (
                line,
                name,
            )
        missed = {
            name for name, value in expected.items() if value != defaults[name]
        } - options.given.keys()
        assert not missed, line


@pytest.mark.parametrize(
    "line, nodes, processes",
    [
        ("train.py", None, 1),
        ("--nnodes=2 x.py", 2, 1),
        ("--nnodes 2:2 --nproc-per-node 8 x.py", 2, 8),
        ("--nproc_per_node gpu x.py", None, None),
        ("--nproc-per-node=auto x.py", None, None),
        ("--nnodes 16 x.py --nnodes 3", 16, 1),
    ],
)
def test_sizes(line, nodes, processes):
    options = parse_torchrun(line.split(), {})
    assert (node_count(options), processes_per_node(options)) == (nodes, processes)


def test_the_environment_stands_in_for_options_that_are_not_given():
    options = parse_torchrun(
        ["--nnodes", "3", "x.py"],
        {"PET_NNODES": "5", "PET_NPROC_PER_NODE": "4", "PET_STANDALONE": "1"},
    )
    assert (
        node_count(options) == 3 and processes_per_node(options) == 4 and options.flag("standalone")
    )
    assert not parse_torchrun(["x.py"], {"PET_STANDALONE": "0"}).flag("standalone")


@pytest.mark.parametrize(
    "line, words",
    [
        ("--nnodes 1:2 x.py", "fixed size: --nnodes 2"),
        ("--nnodes two x.py", "not a number"),
        ("--nnodes 0 x.py", "not a number"),
        ("--nproc-per-node all x.py", "not a number"),
        ("--nproc-per-node cpu x.py", "simulated ones"),
        ("--nnodez 2 x.py", "unknown torchrun option"),
        ("--r 2 x.py", "could be"),
        ("--nnodes", "lacks its value"),
        ("--standalone=1 x.py", "takes no value"),
        ("-x x.py", "unknown torchrun option"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_cure(line, words):
    with pytest.raises(UsageError, match=words) as caught:
        options = parse_torchrun(line.split(), {})
        node_count(options), processes_per_node(options)
    assert str(caught.value).count(";") >= 2 and "\n" not in str(caught.value)
