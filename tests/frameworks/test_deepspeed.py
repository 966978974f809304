"""DeepSpeed, unmodified, by its own launcher and by torchrun: its log, its checkpoints, its loss
scaler, its offloading."""

import gzip
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.torch_release import torch_release

STEP = re.compile(
    r"step (\d+): ([\d.]+) ms, peak ([\d.]+) GiB, grad norm (\S+), skipped (\d+), loss scale (\S+)"
)
BREAKDOWN = re.compile(
    r"\[Rank 0\] time \(ms\) \| fwd: ([\d.]+) \| bwd: ([\d.]+) .*\| step: ([\d.]+)"
)
TINY = ("--size", "tiny", "--seq", 64, "--steps", 2)
RECORDED = Path(__file__).parent / "data/zero2_fp16.values"
VOCABULARY, WIDTH, LAYERS = 1024, 256, 2  # of size tiny
PARAMETERS = 2 * VOCABULARY * WIDTH + 64 * WIDTH + LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + 2 * WIDTH


@pytest.fixture
def folder(root):
    return root / "examples" / "frameworks" / "deepspeed"


@pytest.fixture
def deepspeed(phantora, folder, tmp_path):
    """Runs train.py with a configuration; returns its steps (ms, GiB, norm, skipped, scale), its
    whole output and the report."""

    def run(configuration, *extra, start=("deepspeed", "--num_gpus", 2), own=(), timeout=150):
        report = tmp_path / "report.json"
        done = phantora(
            "--quiet",
            "--report",
            report,
            *own,
            *start,
            folder / "train.py",
            *TINY,
            "--deepspeed_config",
            folder / f"{configuration}.json",
            *extra,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        steps = [match.groups() for match in STEP.finditer(done.stdout)]
        assert [int(step[0]) for step in steps] == list(range(1, len(steps) + 1)) and len(
            steps
        ) >= 2, done.stdout
        return (
            [tuple(map(float, step[1:])) for step in steps],
            done.stdout,
            json.loads(report.read_text()),
        )

    return run


@pytest.mark.slow
def test_zero_3_by_its_own_launcher(deepspeed, tmp_path):
    steps, out, report = deepspeed("zero3", "--recompute", "--save", tmp_path / "checkpoint")
    assert "2 x NVIDIA H200, GPT tiny, ZeRO-3, DeepSpeedZeroOptimizer_Stage3" in out
    assert re.search(r"loaded \S+/checkpoint/last/\S+, step 2", out), (
        "both optimizer steps are in the checkpoint"
    )
    phases = [sum(map(float, match.groups())) for match in BREAKDOWN.finditer(out)]
    assert len(phases) == len(steps)
    for (milliseconds, *_), phase in zip(steps, phases, strict=True):
        assert 0 < phase <= milliseconds + 0.01, (
            "DeepSpeed's timers (CUDA events) and the job's clock are of one time"
        )
    launches = [rank["comm_launches"] for rank in report["ranks"]]
    assert len(launches) == 2 and launches[0] == launches[1] > 0


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("configuration", ["zero1", "zero2"])
def test_zero_by_torchrun(deepspeed, configuration):
    steps, out, _ = deepspeed(configuration, start=("torchrun", "--nproc-per-node", 2), timeout=350)
    assert f"ZeRO-{configuration[-1]}, DeepSpeedZeroOptimizer," in out and steps[-1][3] == 0


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_the_loss_scaler_follows_its_window(deepspeed):
    steps, _, _ = deepspeed("zero2-fp16", "--steps", 5, timeout=350)
    # nothing overflows: the scale doubles after each two good steps (loss_scale_window), by
    # DynamicLossScaler's own count
    assert [step[3] for step in steps] == [0] * 5
    scales = [step[4] for step in steps]
    assert scales[0] == 2**16 and {
        after / before for before, after in zip(scales, scales[1:], strict=False)
    } == {1, 2}
    assert scales[-1] == 2**18


@pytest.fixture(scope="module")
def extensions(tmp_path_factory):
    """Where DeepSpeed keeps cpu_adam. Its compilation takes 75 s of CPU time, which is many minutes on
    a busy machine; so it is done once, and a killed test leaves its lock in no user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        if "TORCH_EXTENSIONS_DIR" not in os.environ:
            patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("extensions")
@pytest.mark.parametrize("configuration", ["zero2-offload", "zero3-offload"])
def test_offloaded_optimizers_pay_for_pcie(deepspeed, configuration, tmp_path):
    traces = tmp_path / "traces"
    steps, out, report = deepspeed(
        configuration, own=("--trace", traces, "--trace-ranks", "0"), timeout=1700
    )
    with gzip.open(next(traces.iterdir()), "rt") as file:
        events = json.load(file)["traceEvents"]
    for name, fewest in (
        ("Memcpy DtoH (Device -> Pinned)", 2),
        ("Memcpy HtoD (Pinned -> Device)", 2),
    ):
        copies = [event for event in events if event.get("name") == name]
        moved = sum(event["args"]["bytes"] for event in copies)
        assert moved >= len(steps) * fewest * PARAMETERS / 2, (
            "each step brings the gradients down and the parameters up, in bf16"
        )
        for event in copies:
            assert event["args"]["bytes"] / event["dur"] / 1e3 < 63, "GB/s of PCIe 5.0 x16"
    for rank in report["ranks"]:
        assert rank["peak_pinned_bytes"] >= 4 * PARAMETERS / 2, (
            "at least the float32 master copy of its share"
        )


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_two_nodes_without_ssh(phantora, folder, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("node-0 slots=1\nnode-1 slots=1\n")
    program = Path(sys.executable).parent / "deepspeed"
    script = " ".join(
        map(
            str,
            [
                program,
                "--hostfile",
                hosts,
                "--no_ssh",
                "--node_rank $NODE_RANK --master_addr $MASTER_ADDR",
                folder / "train.py",
                *TINY,
                "--deepspeed_config",
                folder / "zero2.json",
            ],
        )
    )
    done = phantora(
        "--quiet", "--nnodes", 2, "--gpus-per-node", 1, "bash", "-c", script, timeout=350
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "2 x NVIDIA H200" in done.stdout and len(STEP.findall(done.stdout)) == 2


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "mode, configuration", [("pipeline", "pipeline"), ("moe", "zero1"), ("ulysses", "zero1")]
)
def test_other_parallelisms(phantora, folder, mode, configuration):
    done = phantora(
        "--quiet",
        "torchrun",
        "--nproc-per-node",
        2,
        folder / "parallel.py",
        "--mode",
        mode,
        "--layers",
        2,
        "--seq",
        128,
        "--steps",
        2,
        "--deepspeed_config",
        folder / f"{configuration}.json",
        timeout=350,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert len(re.findall(rf"{mode} step \d: [\d.]+ ms", done.stdout)) == 2


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_what_a_real_gpu_computed_steers_the_loss_scaler(phantora, folder):
    """data/zero2_fp16.values was recorded on an H200 (`profile --record values` of this command);
    the figures are of that log."""
    done = phantora(
        "--quiet",
        "--values",
        f"replay:{RECORDED}",
        "torchrun",
        "--nproc-per-node",
        1,
        folder / "train.py",
        "--deepspeed_config",
        folder / "zero2-fp16.json",
        "--steps",
        6,
        "--size",
        "125m",
        "--seq",
        1024,
        timeout=350,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    steps = [match.groups() for match in STEP.finditer(done.stdout)]
    assert [step[3] for step in steps] == [
        "0.6327",
        "0.6008",
        "0.5719",
        "0.5373",
        "0.5132",
        "0.4941",
    ]
    assert [float(step[5]) for step in steps] == [65536, 65536, 131072, 131072, 262144, 262144]
    if torch_release() == (2, 11):  # as on the GPU; another release allocates other sizes
        assert [step[2] for step in steps] == ["3.41", *["4.22"] * 5], "the peaks are the GPU's too"
