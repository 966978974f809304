"""Why it exists: TorchTitan's released train.py must train in each parallelism, and its log be true
in simulated time.

TorchTitan 0.2 runs beside torch 2.11 and 0.3 beside torch 2.15 (examples/frameworks/pins.py). Their
configurations and options differ; what their logs say does not.
"""

import datetime
import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

BATCH, LENGTH, STEPS = 2, 512, 3  # sequences of a rank, tokens of a sequence
STEP = re.compile(
    r"\[titan\] (\S+ \S+) - root - INFO - step: *(\d+) .*memory: *([\d.]+)GiB\(([\d.]+)%\) +tps: ([\d,]+) +"
    r"tflops: ([\d.,]+) +mfu: ([\d.]+)%"
)
# memory of a GPU, and what TorchTitan takes for its peak
H200, A100 = (150_109_880_320, 989e12), (81_050 * 2**20, 312e12)
NEW = not importlib.metadata.version("torchtitan").startswith("0.2.")
CONFIGS = ("--module", "examples.frameworks.torchtitan.configs", "--config")
# 0.3: what attends by flex_attention is compiled and tuned for minutes; by varlen_attn it is not,
# and runs on an A100
FLEX, VARLEN, MOE_VARLEN = "debug", "debug_varlen", "qwen3_moe_varlen"
PIPELINE = ("--parallelism.pipeline-parallel-degree", 2, "--parallelism.pipeline-parallel-schedule")
TENSOR = ("--parallelism.tensor-parallel-degree", 2)
CONTEXT = ("--parallelism.context-parallel-degree", 2)
EXPERT = "--parallelism.expert-parallel-degree"


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


def test_no_rank_has_to_prepare_the_dataset(root, tmp_path):
    """The rank that did so had 28 more CUDA calls, so the first run of a job was another than the later ones."""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    script = root / "examples/frameworks/torchtitan/make_assets.py"
    load = "from datasets import load_dataset; load_dataset('assets/c4_test', split='train')"
    prepared = []
    for words in ([script, "assets", "--documents", "20"], ["-c", load]):
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True)
        files = sorted((tmp_path / "home").rglob("*.arrow"))
        prepared.append([(path, path.stat().st_mtime_ns) for path in files])
    assert prepared[0] and prepared[0] == prepared[1]


@pytest.fixture
def train(phantora, root, assets, tmp_path):
    """Runs TorchTitan; returns what its log says of each step, by step, and the report."""

    def of_this_version(folder, config):
        """(options of phantora-ns, options of TorchTitan)"""
        if not NEW:
            return (), (
                "--job.config-file",
                root / "examples/frameworks/torchtitan/debug.toml",
                "--job.dump-folder",
                folder,
                "--model.hf-assets-path",
                assets / "tokenizer",
                "--training.dataset-path",
                assets / "c4_test",
            )
        cluster = () if config == FLEX else ("--cluster", "a100-1x8")
        return cluster, (
            *CONFIGS,
            config,
            "--dump-folder",
            folder,
            "--hf-assets-path",
            assets / "tokenizer",
            "--dataloader.dataset-path",
            assets / "c4_test",
        )

    def run(ranks, *options, config=VARLEN, steps=STEPS, batch=BATCH, timeout=170):
        ours, theirs = of_this_version(tmp_path, config)
        done = phantora(
            "--quiet",
            *ours,
            "--host-time",
            "none",
            "--report",
            tmp_path / "report.json",
            "torchrun",
            "--nproc-per-node",
            ranks,
            "-m",
            "torchtitan.train",
            *theirs,
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


def follows_from_its_times(said, report, sharers, gpu):
    """What the log prints follows from the times that its lines carry. `sharers`: ranks that work
    on the same tokens, which TorchTitan counts per GPU."""
    assert sorted(said) == list(range(1, STEPS + 1)) and report["unsupported_calls"] == {}
    memory_bytes, peak_flops = gpu
    lines = [min(said[step]) for step in sorted(said)]  # of the rank whose clock began first
    seconds = [BATCH * LENGTH / (tps * sharers) for _, _, _, tps, *_ in lines]
    between = (lines[-1][0] - lines[0][0]).total_seconds()
    assert sum(seconds[1:]) == pytest.approx(between, abs=0.002), (
        "the log's clock shows milliseconds"
    )
    for _, memory, percent, _, tflops, mfu in lines:
        assert percent == pytest.approx(100 * memory * 2**30 / memory_bytes, abs=0.01)
        assert mfu == pytest.approx(1e14 * tflops / peak_flops, abs=0.01)
    assert (
        lines[-1][1] * 2**30
        <= max(rank["peak_reserved_bytes"] for rank in report["ranks"]) + 2**30 / 100
    )
    return sum(seconds)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_log_is_true_in_simulated_time(train):
    """FSDP, and context parallel over 2 where that needs no compiled attention; in bf16."""
    options, sharers, gpu = ((), 1, A100) if NEW else (CONTEXT, 2, H200)
    said, report = train(2, *options, timeout=280)
    seconds = follows_from_its_times(said, report, sharers, gpu)
    # host time is left out, so there is nothing to simulate but start-up (two all-reduces), the
    # steps, and the two seconds for which rank 0 sleeps at the end
    assert 0.9 < seconds * 1e9 / (report["simulated_ns"] - 2e9) < 1.001


@pytest.mark.skipif(not NEW, reason="TorchTitan 0.2 attends by SDPA, and captures no graph")
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", [(), CONTEXT], ids=["fsdp", "context parallel"])
def test_a_step_is_a_cuda_graph_by_default(train, options):
    """With flex_attention, on an H200: TorchTitan 0.3 records the second step, and launches it."""
    said, report = train(2, *options, config=FLEX, timeout=1150)
    assert "Recorded CUDA graph" in train.log
    follows_from_its_times(said, report, 2 if options else 1, H200)


DDP = (
    "--parallelism.data-parallel-replicate-degree",
    2,
    "--parallelism.data-parallel-shard-degree",
    1,
)
ASYNC_TENSOR = "--parallelism.enable-async-tensor-parallel"
VARIANTS = {
    "ddp": (2, *DDP),
    "hsdp": (4, "--parallelism.data-parallel-replicate-degree", 2),
    "fsdp and tensor parallel": (4, *TENSOR),
    "1F1B": (2, *PIPELINE, "1F1B"),
    "interleaved": (2, *PIPELINE, "Interleaved1F1B"),
    "zero bubble, interleaved": (2, *PIPELINE, "InterleavedZeroBubble"),
    "zero bubble, V": (2, *PIPELINE, "ZBVZeroBubble"),
    "dual pipe": (2, *PIPELINE, "DualPipeV"),
    "fsdp, tensor and pipeline parallel": (8, *TENSOR, *PIPELINE, "1F1B"),
    "compiled": (2, "--compile.enable"),
}
UNFIT = {}  # what a framework does not support beside this torch, and its error
if NEW:
    UNFIT["float8"] = (
        "torchao 0.18 fails at import beside Triton 3.9: key contains names that are not kernel arguments"
    )
    # these schedules split the backward pass, which PyTorch's selective recomputation refuses
    # ("Trying to backward an extra time")
    for name in ("zero bubble, interleaved", "zero bubble, V", "dual pipe"):
        VARIANTS[name] += ("activation-checkpoint:none",)
    VARIANTS |= {
        "fsdp, full recomputation": (2, "activation-checkpoint:full"),
        "mixture of experts": (2, *CONFIGS, MOE_VARLEN),
        "expert parallel": (2, *CONFIGS, MOE_VARLEN, EXPERT, 2),
        "expert and tensor parallel": (8, *CONFIGS, MOE_VARLEN, *TENSOR, EXPERT, 8),
    }
else:
    MOE = ("--model.name", "deepseek_v3")
    VARIANTS |= {
        "fsdp, full recomputation": (2, "--activation-checkpoint.mode", "full"),
        "fsdp, recomputation by operator": (2, "--activation-checkpoint.selective-ac-option", "op"),
        "float8": (
            2,
            "--model.converters",
            "quantize.linear.float8",
            "--quantize.linear.float8.enable-fsdp-float8-all-gather",
            "--quantize.linear.float8.precompute-float8-dynamic-scale-for-fsdp",
        ),
        "async tensor parallel": (2, "--compile.enable", *TENSOR, ASYNC_TENSOR),
        "mixture of experts": (2, *MOE),
        "mixture of experts, llama4": (2, "--model.name", "llama4"),
        "expert parallel": (2, *MOE, EXPERT, 2),
        "expert and tensor parallel": (
            8,
            "--model.name",
            "qwen3",
            "--model.flavor",
            "debugmodel_moe",
            *TENSOR,
            EXPERT,
            8,
        ),
    }


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    "name",
    [
        *VARIANTS,
        *(pytest.param(name, marks=pytest.mark.skip(why)) for name, why in UNFIT.items()),
    ],
)
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
