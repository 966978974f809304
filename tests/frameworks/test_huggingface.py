"""Why it exists: transformers.Trainer and accelerate must run unmodified on every back end, and log
simulated time.

What Trainer logs as its run time is held between two other clocks: CUDA events inside it, and the
report's end of the run.
"""

import ast
import json
import math
import re
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parent / "jobs"
BIN = Path(sys.executable).parent
TINY = (
    "--hidden_size",
    256,
    "--layers",
    2,
    "--heads",
    4,
    "--kv_heads",
    2,
    "--intermediate_size",
    512,
    "--vocab_size",
    2048,
    "--sequence_length",
    128,
    "--max_steps",
    4,
    "--logging_steps",
    1,
    "--report_to",
    "none",
    "--disable_tqdm",
    "true",
    "--per_device_train_batch_size",
    2,
)
# of that Llama
PARAMETERS = 2 * 2048 * 256 + 2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512 + 2 * 256) + 256


@pytest.fixture
def folder(root):
    return root / "examples/frameworks/huggingface"


@pytest.fixture
def run(phantora, folder, tmp_path):
    """Runs a command in the examples' folder; returns (what Trainer logged, report, stdout) of a
    job that ended well."""

    def go(*command, timeout=600):
        path = tmp_path / "report.json"
        done = phantora(
            "--quiet",
            "--report",
            path,
            *command,
            cwd=folder,
            timeout=timeout,
            env={"HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        report = json.loads(path.read_text())
        assert (report["unsupported_calls"], report["errors"]) == ({}, [])
        logs = [ast.literal_eval(found) for found in re.findall(r"^\{'.*\}$", done.stdout, re.M)]
        return logs, report, done.stdout

    return go


def check_log(logs, report, steps):
    """The lines of `steps`, in order, with finite figures, and a run time inside the simulated
    run."""
    assert [float(line["epoch"]) for line in logs if "loss" in line] == [step / 4 for step in steps]
    for line in logs:
        assert all(math.isfinite(float(value)) for value in line.values()), line
    last = [line for line in logs if "train_runtime" in line]
    assert len(last) == 1 and 0 < float(last[0]["train_runtime"]) <= report["simulated_ns"] / 1e9


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_trainer_on_fsdp2_logs_simulated_time(phantora, tmp_path):
    path = tmp_path / "report.json"
    done = phantora(
        "--quiet",
        "--report",
        path,
        "torchrun",
        "--nproc-per-node",
        2,
        JOBS / "trainer_clocks.py",
        tmp_path / "out",
        timeout=280,
        env={"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("TRAINER ")[2].splitlines()[0])
    report, metrics = json.loads(path.read_text()), found["metrics"]
    assert (report["unsupported_calls"], report["errors"]) == ({}, [])
    assert [line["step"] for line in found["logs"]] == [1, 2, 3, 4]
    assert (
        0 < found["events_s"] <= metrics["train_runtime"] + 1e-4
        and metrics["train_runtime"] <= report["simulated_ns"] / 1e9
    )
    assert metrics["train_samples_per_second"] == pytest.approx(
        2 * 2 * 2 * 4 / metrics["train_runtime"], rel=0.01
    )


@pytest.mark.nightly
@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "options",
    [
        (
            "--bf16",
            "--gradient_checkpointing",
            "--gradient_accumulation_steps",
            2,
            "--dataloader_num_workers",
            1,
            "--optim",
            "adamw_torch_fused",
        ),
        ("--fp16",),
        ("--bf16", "--eval_strategy", "steps", "--eval_steps", 2),
        ("--bf16", "--model", "qwen3", "--fsdp", "--fsdp_config", "configs/fsdp2.json"),
        ("--bf16", "--model", "qwen3-moe"),
        ("--bf16", "--model", "qwen3-moe", "--fsdp", "--fsdp_config", "configs/fsdp2.json"),
        ("--bf16", "--deepspeed", "configs/zero2.json", "--gradient_accumulation_steps", 2),
        ("--bf16", "--model", "qwen3-moe", "--deepspeed", "configs/zero3.json"),
    ],
    ids=["ddp", "fp16", "evaluation", "fsdp2", "moe-ddp", "moe-fsdp2", "zero2", "moe-zero3"],
)
def test_trainer_on_every_back_end(run, tmp_path, options):
    logs, report, _ = run(
        "torchrun",
        "--nproc-per-node",
        2,
        "train_trainer.py",
        *TINY,
        "--output_dir",
        tmp_path / "out",
        "--save_strategy",
        "no",
        *options,
    )
    check_log(logs, report, [1, 2, 3, 4])
    assert report["warnings"] == {}


@pytest.mark.nightly
@pytest.mark.timeout(660)
@pytest.mark.parametrize("config", ["ddp", "fsdp2", "zero3"])
def test_accelerate_launch_starts_trainer(run, tmp_path, config):
    # as that file says; Trainer compares them
    extra = ("--gradient_accumulation_steps", 2) if config == "zero3" else ()
    logs, report, _ = run(
        "--gpus-per-node",
        2,
        BIN / "accelerate",
        "launch",
        "--num_processes",
        2,
        "--config_file",
        f"configs/accelerate_{config}.yaml",
        "train_trainer.py",
        *TINY,
        "--output_dir",
        tmp_path / "out",
        "--bf16",
        "--save_strategy",
        "no",
        *extra,
    )
    check_log(logs, report, [1, 2, 3, 4])


@pytest.mark.nightly
@pytest.mark.timeout(660)
def test_accelerate_launch_on_two_nodes(run, tmp_path):
    place = (
        "--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
    )
    job = " ".join(
        map(
            str,
            (
                "train_trainer.py",
                *TINY,
                "--output_dir",
                tmp_path / "out",
                "--bf16",
                "--save_strategy",
                "no",
            ),
        )
    )
    logs, report, _ = run(
        "--nnodes",
        2,
        "--gpus-per-node",
        1,
        "--",
        "bash",
        "-c",
        f"{BIN / 'accelerate'} launch --config_file configs/accelerate_fsdp2.yaml --num_machines 2 "
        f"--num_processes 2 {place} {job}",
    )
    assert len({rank["node"] for rank in report["ranks"]}) == 2
    # each node's first process prints
    assert {float(line["epoch"]) for line in logs if "loss" in line} == {
        0.25,
        0.5,
        0.75,
        1.0,
    }
    assert all(
        float(line["train_runtime"]) <= report["simulated_ns"] / 1e9
        for line in logs
        if "train_runtime" in line
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [(), ("--fsdp", "--fsdp_config", "configs/fsdp2.json"), ("--deepspeed", "configs/zero3.json")],
    ids=["ddp", "fsdp2", "zero3"],
)
def test_trainer_resumes_from_its_checkpoint(run, tmp_path, options):
    command = (
        "torchrun",
        "--nproc-per-node",
        2,
        "train_trainer.py",
        *TINY,
        "--output_dir",
        tmp_path / "out",
        "--bf16",
        "--save_steps",
        2,
        *options,
    )
    logs, report, _ = run(*command)
    check_log(logs, report, [1, 2, 3, 4])
    logs, report, _ = run(*command, "--resume_from_checkpoint", tmp_path / "out/checkpoint-2")
    check_log(logs, report, [3, 4])


@pytest.mark.nightly
@pytest.mark.timeout(660)
def test_sharding_saves_the_memory_that_it_should(run, tmp_path):
    """Weights, gradients and two moments in fp32: 16 bytes a parameter with DDP, half of that on
    each of two GPUs with FSDP2."""
    command = (
        "torchrun",
        "--nproc-per-node",
        2,
        "train_trainer.py",
        *TINY,
        "--output_dir",
        tmp_path / "out",
        "--bf16",
        "--save_strategy",
        "no",
    )
    peaks = [
        [rank["peak_allocated_bytes"] for rank in run(*command, *options)[1]["ranks"]]
        for options in ((), ("--fsdp", "--fsdp_config", "configs/fsdp2.json"))
    ]
    assert min(peaks[0]) > 16 * PARAMETERS and max(peaks[1]) < min(peaks[0]) - 7 * PARAMETERS


@pytest.mark.nightly
@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "launch",
    [
        ("torchrun", "--nproc-per-node", 2, "train_accelerate.py", "--mixed-precision", "fp16"),
        (
            "--gpus-per-node",
            2,
            BIN / "accelerate",
            "launch",
            "--config_file",
            "configs/accelerate_fsdp2.yaml",
            "--num_processes",
            2,
            "train_accelerate.py",
            "--model",
            "qwen3",
        ),
        (
            "--gpus-per-node",
            2,
            BIN / "accelerate",
            "launch",
            "--config_file",
            "configs/accelerate_zero3.yaml",
            "--num_processes",
            2,
            "train_accelerate.py",
        ),
    ],
    ids=["torchrun-fp16", "fsdp2", "zero3"],
)
def test_a_loop_over_accelerator(run, tmp_path, launch):
    _, _, out = run(
        *launch,
        "--width",
        256,
        "--layers",
        2,
        "--vocabulary",
        2048,
        "--sequence",
        128,
        "--steps",
        3,
        "--save",
        tmp_path / "state",
    )
    steps = re.findall(
        r"^step (\d+) loss (\S+) of 2 ranks norm (\S+) (\S+) ms (\d+) tokens/s peak (\S+) GiB$",
        out,
        re.M,
    )
    assert [int(step[0]) for step in steps] == [1, 2, 3] and "state saved and loaded" in out
    assert all(math.isfinite(float(value)) for step in steps for value in step) and all(
        float(step[3]) > 0 for step in steps
    )
