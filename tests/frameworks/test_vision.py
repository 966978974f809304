"""Why it exists: convolutions by cuDNN under DDP, in each layout and precision, and loss scaling
that reads the device."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parent / "jobs"
RESNET = re.compile(
    r"^step (\d+) loss (\S+) scale (\S+) (\S+) ms (\d+) images/s peak (\S+) GiB$", re.M
)
UNET = re.compile(
    r"^step (\d+) loss (\S+) norm (\S+) scale (\S+) (\S+) ms (\d+) images/s peak (\S+) GiB$", re.M
)


@pytest.fixture
def run(phantora, root, tmp_path):
    def go(*command, lines):
        path = tmp_path / "report.json"
        done = phantora(
            "--quiet",
            "--report",
            path,
            "torchrun",
            "--nproc-per-node",
            2,
            *command,
            timeout=600,
            cwd=root / "examples/frameworks/vision",
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        report = json.loads(path.read_text())
        assert (report["unsupported_calls"], report["errors"]) == ({}, [])
        steps = [tuple(map(float, found)) for found in lines.findall(done.stdout)]
        assert [step[0] for step in steps] == [1, 2, 3] and all(
            math.isfinite(value) for step in steps for value in step
        )
        return steps, report

    return go


@pytest.mark.slow
def test_loss_scaling_follows_the_cpus(phantora):
    """The scale after overflows, a NaN and good steps, and which steps move the weights; torch's
    CPU GradScaler is the oracle."""
    done = phantora("--quiet", "--gpus-per-node", 1, "--", sys.executable, JOBS / "loss_scaling.py")
    assert done.returncode == 0, done.stderr
    scales = json.loads(done.stdout.partition("SCALES ")[2].splitlines()[0])
    assert scales["cuda"] == scales["cpu"]
    assert {moved for _, moved, _ in scales["cpu"]} == {True, False}  # the oracle saw both


@pytest.mark.nightly
def test_loss_scaling_follows_the_cpus_on_two_ranks(phantora):
    done = phantora("--quiet", "torchrun", "--nproc-per-node", 2, JOBS / "loss_scaling.py")
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(line.partition(" ")[2])
        for line in done.stdout.splitlines()
        if line.startswith("SCALES ")
    ]
    assert len(found) == 2 and all(
        scales["cuda"] == scales["cpu"] == found[0]["cpu"] for scales in found
    )


@pytest.mark.nightly
@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "bf16", "--channels-last"),
        ("--precision", "fp16", "--sync-batch-norm"),
        ("--precision", "fp32", "--benchmark"),
    ],
    ids=["bf16-nhwc", "fp16-sync", "fp32-benchmark"],
)
def test_resnet(run, options):
    steps, report = run(
        "train_resnet.py",
        "--model",
        "resnet50",
        "--batch",
        4,
        "--image",
        64,
        "--classes",
        100,
        "--steps",
        3,
        "--workers",
        1,
        *options,
        lines=RESNET,
    )
    parameters = 25_557_032 - 900 * 2049  # of torchvision's ResNet-50, with 100 classes
    # weights, gradients, momentum
    assert all(rank["peak_allocated_bytes"] > 12 * parameters for rank in report["ranks"])
    # nothing overflows: no step may be skipped
    assert all(step[2] == (65536 if "fp16" in options else 1) for step in steps)


@pytest.mark.nightly
@pytest.mark.timeout(660)
@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "bf16", "--channels-last"),
        ("--precision", "fp16", "--conditional", "--checkpointing"),
    ],
    ids=["plain", "conditional"],
)
def test_unet(run, options):
    steps, _ = run(
        "train_unet.py",
        "--batch",
        2,
        "--image",
        32,
        "--channels",
        32,
        64,
        "--steps",
        3,
        *options,
        lines=UNET,
    )
    assert all(step[3] == (65536 if "fp16" in options else 1) for step in steps)
