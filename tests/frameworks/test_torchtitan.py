"""Why it exists: TorchTitan's released train.py must train in each parallelism, and its log be true
in simulated time."""

import datetime
import json
import re
import subprocess
import sys

import pytest

BATCH, LENGTH, STEPS = 2, 512, 3  # sequences of a rank, tokens of a sequence
STEP = re.compile(
    r"\[titan\] (\S+ \S+) - root - INFO - step: *(\d+) .*memory: *([\d.]+)GiB\(([\d.]+)%\) +tps: ([\d,]+) +"
    r"tflops: ([\d.,]+) +mfu: ([\d.]+)%"
)
H200_BYTES, H200_BF16_TFLOPS = 150_109_880_320, 989


@pytest.fixture(scope="module")
def assets(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    subprocess.run(
        [
            sys.executable,
            root / "examples/frameworks/torchtitan/make_assets.py",
            folder,
            "--documents",
            "200",
        ],
        check=True,
    )
    return folder


@pytest.fixture
def train(phantora, root, assets, tmp_path):
    """Runs TorchTitan; returns what its log says of each step, by step, and the report."""

    def run(ranks, *options, steps=STEPS, batch=BATCH, folder=tmp_path, timeout=170):
        done = phantora(
            "--quiet",
            "--host-time",
            "none",
            "--report",
            tmp_path / "report.json",
            "torchrun",
            "--nproc-per-node",
            ranks,
            "-m",
            "torchtitan.train",
            "--job.config-file",
            root / "examples/frameworks/torchtitan/debug.toml",
            "--job.dump-folder",
            folder,
            "--model.hf-assets-path",
            assets / "tokenizer",
            "--training.dataset-path",
            assets / "c4_test",
            "--training.local-batch-size",
            batch,
            "--training.seq-len",
            LENGTH,
            "--training.steps",
            steps,
            *options,
            timeout=timeout,
            env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        said = {}
        for when, step, *numbers in STEP.findall(done.stdout + done.stderr):
            said.setdefault(int(step), []).append(
                (
                    datetime.datetime.fromisoformat(when.replace(",", ".")),
                    *(float(n.replace(",", "")) for n in numbers),
                )
            )
        assert said and all(len(lines) == ranks for lines in said.values())
        run.log = done.stdout + done.stderr
        return said, json.loads((tmp_path / "report.json").read_text())

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_log_is_true_in_simulated_time(train):
    """FSDP and context parallel over 2, in bf16: what is printed follows from the times that the
    log lines carry."""
    said, report = train(2, "--parallelism.context-parallel-degree", 2, timeout=280)
    assert sorted(said) == list(range(1, STEPS + 1)) and report["unsupported_calls"] == {}
    lines = [min(said[step]) for step in sorted(said)]  # of the rank whose clock began first
    # TorchTitan counts tokens per GPU: two share each
    seconds = [BATCH * LENGTH / (tps * 2) for _, _, _, tps, *_ in lines]
    between = (lines[-1][0] - lines[0][0]).total_seconds()
    assert sum(seconds[1:]) == pytest.approx(between, abs=0.002), (
        "the log's clock shows milliseconds"
    )
    # host time is left out, so there is nothing to simulate but start-up (two all-reduces) and the
    # steps
    assert 0.9 < sum(seconds) * 1e9 / report["simulated_ns"] < 1.001
    for _, memory, percent, _, tflops, mfu in lines:
        assert percent == pytest.approx(100 * memory * 2**30 / H200_BYTES, abs=0.01)
        assert mfu == pytest.approx(100 * tflops / H200_BF16_TFLOPS, abs=0.01)
    assert (
        lines[-1][1] * 2**30
        <= max(rank["peak_reserved_bytes"] for rank in report["ranks"]) + 2**30 / 100
    )


PIPELINE = ("--parallelism.pipeline-parallel-degree", 2, "--parallelism.pipeline-parallel-schedule")
MOE = ("--model.name", "deepseek_v3")
VARIANTS = {
    "fsdp, full recomputation": (2, "--activation-checkpoint.mode", "full"),
    "fsdp, recomputation by operator": (2, "--activation-checkpoint.selective-ac-option", "op"),
    "ddp": (
        2,
        "--parallelism.data-parallel-replicate-degree",
        2,
        "--parallelism.data-parallel-shard-degree",
        1,
    ),
    "hsdp": (4, "--parallelism.data-parallel-replicate-degree", 2),
    "fsdp and tensor parallel": (4, "--parallelism.tensor-parallel-degree", 2),
    "1F1B": (2, *PIPELINE, "1F1B"),
    "interleaved": (2, *PIPELINE, "Interleaved1F1B"),
    "zero bubble, interleaved": (2, *PIPELINE, "InterleavedZeroBubble"),
    "zero bubble, V": (2, *PIPELINE, "ZBVZeroBubble"),
    "dual pipe": (2, *PIPELINE, "DualPipeV"),
    "fsdp, tensor and pipeline parallel": (
        8,
        "--parallelism.tensor-parallel-degree",
        2,
        *PIPELINE,
        "1F1B",
    ),
    "float8": (
        2,
        "--model.converters",
        "quantize.linear.float8",
        "--quantize.linear.float8.enable-fsdp-float8-all-gather",
        "--quantize.linear.float8.precompute-float8-dynamic-scale-for-fsdp",
    ),
    "compiled": (2, "--compile.enable"),
    "mixture of experts": (2, *MOE),
    "mixture of experts, llama4": (2, "--model.name", "llama4"),
    "async tensor parallel": (
        2,
        "--compile.enable",
        "--parallelism.tensor-parallel-degree",
        2,
        "--parallelism.enable-async-tensor-parallel",
    ),
    "expert parallel": (2, *MOE, "--parallelism.expert-parallel-degree", 2),
    "expert and tensor parallel": (
        8,
        "--model.name",
        "qwen3",
        "--model.flavor",
        "debugmodel_moe",
        "--parallelism.tensor-parallel-degree",
        2,
        "--parallelism.expert-parallel-degree",
        8,
    ),
}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", VARIANTS)
def test_trains(train, name):
    ranks, *options = VARIANTS[name]
    # its microbatches are single sequences, and DualPipeV wants twice as many as there are stages
    said, report = train(ranks, *options, batch=8 if "DualPipeV" in options else 4, timeout=400)
    assert sorted(said) == list(range(1, STEPS + 1))
    assert report["unsupported_calls"] == {} and report["errors"] == [] and report["exit_code"] == 0


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_a_run_goes_on_where_its_checkpoint_ends(train, tmp_path, mode):
    options = (
        "--checkpoint.enable",
        "--checkpoint.interval",
        2,
        "--checkpoint.async-mode",
        mode,
        "--checkpoint.no-last-save-model-only",
    )
    first, _ = train(2, *options, steps=2, timeout=200)
    second, _ = train(2, *options, steps=4, timeout=200)
    assert (sorted(first), sorted(second)) == ([1, 2], [3, 4])
    assert "Training starts at step 3" in train.log
