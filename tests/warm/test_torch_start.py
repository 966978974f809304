"""Why it exists: torch reads variables while it is imported, and an image holds a torch that has been imported
already. A script that sets such a variable first must see its effect all the same."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import json, os, sys, threading
if sys.argv[1:]:
    os.environ.update(word.split("=", 1) for word in sys.argv[1:])
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
model = torch.nn.Linear(512, 512, device="cuda")
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
total = torch.full((1,), float(dist.get_rank() + 1), device="cuda")
dist.all_reduce(total)
for _ in range(2):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
answer = dict(
    rank=dist.get_rank(), total=total.item(), threads=torch.get_num_threads(),
    peak=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved(),
    expandable=[s["is_expandable"] for s in torch.cuda.memory_snapshot()],
    blocking=os.environ.get("CUDA_LAUNCH_BLOCKING"), name=torch.cuda.get_device_name(),
    node=os.uname().nodename, again="PHANTORA_WARM_NOT" in os.environ,
    modules=sorted({n.partition(".")[0] for n in sys.modules} & {"torch", "numpy", "triton", "sympy"}),
)
os.write(1, f"ANSWER {json.dumps(answer)}\\n".encode())  # in one piece
dist.destroy_process_group()
"""


def answers(phantora, tmp_path, warm, words=(), nodes=1, options=()):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    report = tmp_path / f"{warm}.json"
    done = phantora(
        "--warm-start", warm, *options, "--report", report, "--quiet", "torchrun", "--nnodes", nodes,
        "--nproc-per-node", 2, job, *words, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # what nanobind (Triton 3.9) says of what an interpreter does not free
    assert "leaked" not in done.stderr
    lines = [json.loads(line[7:]) for line in done.stdout.splitlines() if line[:7] == "ANSWER "]
    return sorted(lines, key=lambda one: one["rank"]), json.loads(report.read_text())["starts"]


def test_ranks_on_two_nodes_compute_the_same(phantora, tmp_path):
    plain, none = answers(phantora, tmp_path, "off", nodes=2)
    warm, starts = answers(phantora, tmp_path, "auto", nodes=2)
    assert warm == plain
    assert [one["total"] for one in warm] == [10.0] * 4
    assert none is None
    assert (
        starts["warm"] + starts["plain"].get("the stack lies in the way", 0) == 6
    )  # two are agents


def test_the_allocators_settings_of_the_script(phantora, tmp_path):
    words = ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    plain, _ = answers(phantora, tmp_path, "off", words)
    warm, starts = answers(phantora, tmp_path, "auto", words)
    assert warm == plain
    assert all(all(one["expandable"]) for one in warm)
    assert starts["warm"] + starts["plain"].get("the stack lies in the way", 0) == 3


def test_a_module_that_asks_for_gpus_when_it_is_imported_is_left_out(
    phantora, tmp_path, monkeypatch
):
    """Once a process has counted its GPUs, torch refuses CUDA in its forks ("Cannot re-initialize CUDA")."""
    (tmp_path / "asks_for_gpus.py").write_text("import torch; torch.cuda.is_available()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plain, _ = answers(phantora, tmp_path, "off")
    warm, starts = answers(
        phantora, tmp_path, "auto", options=("--preload-modules", "asks_for_gpus")
    )
    assert warm == plain
    assert starts["plain"].pop("no image of all modules: an import uses CUDA") > 0
    assert starts["warm"] + starts["plain"].get("the stack lies in the way", 0) == 3


@pytest.mark.nightly
def test_a_variable_that_libraries_read_starts_the_rank_again(phantora, tmp_path):
    words = ["OMP_NUM_THREADS=2"]
    plain, _ = answers(phantora, tmp_path, "off", words)
    warm, starts = answers(phantora, tmp_path, "auto", words)
    assert warm == plain
    assert [one["threads"] for one in warm] == [2, 2]
    reason = "the script sets OMP_NUM_THREADS before an import that reads it"
    assert starts == {"warm": 1, "plain": {reason: 2}}


TRACER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void note(const char *name)
{
    char line[300];
    int fd = open(getenv_file, O_WRONLY | O_CREAT | O_APPEND, 0600);
    int length = snprintf(line, sizeof line, "%s\\n", name);
    if (write(fd, line, (size_t)length) < 0) return;
    close(fd);
}
#define TRACED(function)                                     \\
    char *function(const char *name)                         \\
    {                                                        \\
        char *(*real)(const char *);                         \\
        *(void **)&real = dlsym(RTLD_NEXT, #function);       \\
        note(name);                                          \\
        return real(name);                                   \\
    }
TRACED(getenv)
TRACED(secure_getenv)
"""


def read_by_libraries(tmp_path, modules):
    """The names of variables that C code reads in a Python that imports `modules`."""
    log, source, library = tmp_path / "log", tmp_path / "tracer.c", tmp_path / "tracer.so"
    source.write_text(f'#define getenv_file "{log}"\n{TRACER}')
    command = ["cc", "-shared", "-fPIC", "-Wno-nonnull-compare", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    code = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    env = {**os.environ, "LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-c", code, *modules], env=env, check=True)
    return set(log.read_text().split())


@pytest.fixture
def at_load(root):
    """The prefixes of names that the hook takes for variables that libraries read, and those it does not."""
    tree = ast.parse((root / "phantora_ns/startup/_phantora_warm.py").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id in ("_READ_AT_LOAD", "_READ_LATER"):
            found[node.targets[0].id] = eval(compile(ast.Expression(node.value), "", "eval"))
    return found["_READ_AT_LOAD"], found["_READ_LATER"]


NOT_OF_TORCH = {"PATH", "HOME", "bar", "CUDA_7a3f9c2d", "__PYVENV_LAUNCHER__", "TMPDIR", "TZ"}
"""Python's own search for its folders, and names that libraries make up."""


def test_what_libraries_read_while_torch_is_imported_is_known(tmp_path, at_load):
    from phantora_ns.launch.machine.warm_start import MODULES

    names = read_by_libraries(tmp_path, MODULES[:4])
    assert "OMP_NUM_THREADS" in names
    read, later = at_load
    unknown = {one for one in names - NOT_OF_TORCH if not one.startswith(read)}
    assert not unknown
    assert not {one for one in names if one.startswith(later)}


def test_what_may_differ_is_not_read_while_torch_is_imported(tmp_path):
    from phantora_ns.launch.machine.warm_start import MODULES

    source = Path("libintercept/warm/command.c").read_text()
    listed = source[source.index("MAY_DIFFER[] = {") : source.index('"PWD"')]
    names = [part for part in listed.split('"')[1::2] if "*" not in part]
    assert "LOCAL_RANK" in names
    read = read_by_libraries(tmp_path, MODULES)
    assert not read & set(names)
