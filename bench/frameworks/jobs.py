"""The jobs whose real and simulated runs are compared, and how the log of each framework is read.

Why it exists: real.py and compare.py must run the very same command lines and read them in the same
way.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = "examples/frameworks"
# in ROOT: TorchTitan's tokenizer and dataset (make_assets.py), dumps and caches
ASSETS = "build/bench-frameworks"
STEPS = 12
WARM_UP = 4  # steps that are not timed: allocation, compilation, DDP's second buckets
# nor are the last, in which real.py records a trace, and the one before it, at whose end the
TIMED = slice(WARM_UP, STEPS - 2)
# profiler starts: 5 to 47 % longer on a GPU


def summary(step_ms: list[float]) -> dict:
    """Median and spread (largest less smallest, over the median) of the timed steps."""
    timed = step_ms[TIMED]
    median = round(statistics.median(timed), 3)
    return {"median_ms": median, "spread": round((max(timed) - min(timed)) / median, 4)}


TITAN = re.compile(
    r"step: +(\d+) .*?memory: +([\d.]+)GiB.*?tps: ([\d,]+) +tflops: ([\d.,]+) +mfu: ([\d.]+)%"
)
MEGATRON = re.compile(
    r" iteration +(\d+)/.*?\(ms\): ([\d.]+) \| tokens/s: (\d+) \| throughput per GPU \(TFLOP/s/GPU\): ([\d.]+) "
    r".*?peak memory \(MiB\): (\d+)"
)
DEEPSPEED = re.compile(r"^step (\d+): ([\d.]+) ms, peak ([\d.]+) GiB", re.M)
VISION = re.compile(r"^step (\d+) .*? ([\d.]+) ms (\d+) images/s peak ([\d.]+) GiB", re.M)
TRAINER = re.compile(r"'?train_runtime'?\s*[:=]\s*'?([\d.:]+)")
BENCH = re.compile(r"^BENCH (\{.*\})$", re.M)


@dataclass(frozen=True)
class Job:
    """`words`: what follows torchrun's own options (after job.py). `tokens`: of a step of one rank,
    where the log wants it to give a time. `updates`: calls of an optimizer's step() within one
    step. `seconds`: what a real run may take. `bound`: what limits the step; DeepSpeed's Python is the
    limit of its jobs."""

    name: str
    framework: str
    gpus: int
    words: tuple[str, ...]
    tokens: int = 0
    updates: int = 1
    seconds: int = 70
    packages: tuple[str, ...] = ()
    environment: dict = field(default_factory=dict)
    bound: str = "gpu"

    def read(self, text: str) -> dict:
        """What the log of a run says, its own numbers by their own names.

        Raises ValueError when it does not hold as many steps as there were.
        """
        found = READERS[self.framework](self, text)
        ranks = sorted(
            (json.loads(line) for line in BENCH.findall(text)), key=lambda line: line["rank"]
        )
        if not ranks:
            raise ValueError("no rank got to its end")
        updates = ranks[0]["updates"][:: self.updates]
        found["update_ms"] = [
            round((b - a) * 1e3, 3) for a, b in zip(updates, updates[1:], strict=False)
        ]
        # where the log prints no step times: from update to update
        found.setdefault("step_ms", [0.0, *found["update_ms"]])
        if len(found["step_ms"]) != STEPS:
            raise ValueError(f"{len(found['step_ms'])} steps in the log, not {STEPS}")
        found |= summary(found["step_ms"])
        found["peak_allocated"] = [rank["peak_allocated"] for rank in ranks]
        found["peak_reserved"] = [rank["peak_reserved"] for rank in ranks]
        found["update_count"] = ranks[0]["update_count"]
        found["device"] = ranks[0]["device"]
        return found


def _titan(job: Job, text: str) -> dict:
    lines = {int(m[1]): m for m in TITAN.finditer(text)}  # every rank may print; all print the same
    rows = [lines[step] for step in sorted(lines)]
    tokens = [int(m[3].replace(",", "")) for m in rows]
    return {
        "step_ms": [round(job.tokens / rate * 1e3, 3) for rate in tokens],
        "tokens_per_s": tokens,
        "tflops": [float(m[4].replace(",", "")) for m in rows],
        "mfu_percent": [float(m[5]) for m in rows],
        "log_reserved_gib": [float(m[2]) for m in rows],
    }


def _megatron(_job: Job, text: str) -> dict:
    rows = MEGATRON.findall(text)
    return {
        "step_ms": [float(row[1]) for row in rows],
        "tokens_per_s": [int(row[2]) for row in rows],
        "tflops": [float(row[3]) for row in rows],
        "log_allocated_mib": [int(row[4]) for row in rows],
    }


def _deepspeed(_job: Job, text: str) -> dict:
    rows = DEEPSPEED.findall(text)
    return {
        "step_ms": [float(row[1]) for row in rows],
        "log_allocated_gib": [float(row[2]) for row in rows],
    }


def _vision(_job: Job, text: str) -> dict:
    rows = VISION.findall(text)
    return {
        "step_ms": [float(row[1]) for row in rows],
        "images_per_s": [int(row[2]) for row in rows],
        "log_allocated_gib": [float(row[3]) for row in rows],
    }


def _trainer(_job: Job, text: str) -> dict:
    runtime = TRAINER.search(text)
    return {"train_runtime": runtime[1] if runtime else None}


READERS = {
    "torchtitan": _titan,
    "megatron-core": _megatron,
    "deepspeed": _deepspeed,
    "transformers": _trainer,
    "vision": _vision,
}


def titan(
    name: str,
    *options: str,
    model: str = "llama3",
    flavor: str = "8B_6_layers",
    gpus: int = 1,
    batch: int = 2,
    seconds: int = 70,
    share: int = 1,
) -> Job:
    """`share`: the tensor-parallel ranks that share a sequence's tokens; TorchTitan's tps is that
    of one rank."""
    words = (
        "-m",
        "torchtitan.train",
        "--job.config-file",
        f"{EXAMPLES}/torchtitan/debug.toml",
        "--experimental.custom-import",
        "titan_sizes",
        "--model.name",
        model,
        "--model.flavor",
        flavor,
        "--model.hf-assets-path",
        f"{ASSETS}/tokenizer",
        "--training.dataset-path",
        f"{ASSETS}/c4_test",
        "--job.dump-folder",
        f"{ASSETS}/titan",
        "--training.local-batch-size",
        str(batch),
        "--training.seq-len",
        "4096",
        "--training.steps",
        str(STEPS),
        *options,
    )
    if "--activation-checkpoint.mode" not in options:
        words += ("--activation-checkpoint.mode", "none")
    return Job(
        name,
        "torchtitan",
        gpus,
        words,
        tokens=batch * 4096 // share,
        seconds=seconds,
        packages=("torchtitan", "torchao"),
    )


def deepspeed(
    name: str, config: str, *options: str, gpus: int = 1, seconds: int = 70, updates: int = 1
) -> Job:
    words = (
        f"{EXAMPLES}/deepspeed/train.py",
        "--deepspeed_config",
        f"{EXAMPLES}/deepspeed/{config}.json",
        "--steps",
        str(STEPS),
        *options,
    )
    return Job(
        name,
        "deepspeed",
        gpus,
        words,
        seconds=seconds,
        updates=updates,
        packages=("deepspeed",),
        bound="host",
    )


def trainer(name: str, *options: str, gpus: int = 1) -> Job:
    words = (
        f"{EXAMPLES}/huggingface/train_trainer.py",
        "--output_dir",
        f"{ASSETS}/{name}",
        "--bf16",
        "--max_steps",
        str(STEPS),
        "--logging_steps",
        "1",
        "--report_to",
        "none",
        "--save_strategy",
        "no",
        "--disable_tqdm",
        "true",
        *options,
    )
    return Job(name, "transformers", gpus, words, packages=("transformers", "accelerate"))


SELECTIVE = (
    "--activation-checkpoint.mode",
    "selective",
    "--activation-checkpoint.selective-ac-option",
    "op",
)
MOE = {"model": "deepseek_v3", "flavor": "16B_3_layers"}
MEGATRON_OPTIONS = (
    "--hidden-size",
    "2048",
    "--num-attention-heads",
    "16",
    "--seq-length",
    "2048",
    "--micro-batch-size",
    "4",
    "--swiglu",
    "--use-distributed-optimizer",
    "--train-iters",
    str(STEPS),
)


def megatron(name: str, *options: str, gpus: int = 1) -> Job:
    words = (f"{EXAMPLES}/megatron/train_gpt.py", *options, *MEGATRON_OPTIONS)
    return Job(name, "megatron-core", gpus, words, seconds=75, packages=("megatron-core",))


def unet(name: str, *options: str) -> Job:
    words = (f"{EXAMPLES}/vision/train_unet.py", *options, "--steps", str(STEPS))
    return Job(name, "vision", 1, words, packages=("diffusers",))


JOBS = [
    titan("titan-llama"),
    titan("titan-llama-selective", *SELECTIVE),
    titan("titan-moe", **MOE),
    megatron("megatron-local", "--num-layers", "12", "--global-batch-size", "8"),
    deepspeed("deepspeed-zero2", "zero2", "--size", "1b", "--seq", "4096"),
    deepspeed("deepspeed-zero3", "zero3", "--size", "1b", "--seq", "4096", updates=2),
    trainer("trainer-ddp"),
    # a batch for each worker, so that no step after the first waits for one
    Job(
        "resnet50-ddp",
        "vision",
        1,
        (
            f"{EXAMPLES}/vision/train_resnet.py",
            "--batch",
            "256",
            "--channels-last",
            "--workers",
            "14",
            "--steps",
            str(STEPS),
        ),
        packages=("torchvision",),
    ),
    unet("unet-ddp", "--batch", "64", "--channels-last"),
    unet("unet-conditional", "--conditional", "--batch", "64", "--channels-last"),
    unet(
        "unet-fp16",
        "--batch",
        "24",
        "--image",
        "96",
        "--channels",
        "160",
        "320",
        "480",
        "--precision",
        "fp16",
    ),
    titan("titan-llama-float8", "--model.converters", "quantize.linear.float8"),
    titan("titan-llama-compile", "--compile.enable", seconds=110),
    titan(
        "titan-llama-float8-compile",
        "--model.converters",
        "quantize.linear.float8",
        "--compile.enable",
        seconds=110,
    ),
    titan("titan-qwen3-moe", model="qwen3", flavor="30B-A3B_3_layers"),
    deepspeed("deepspeed-zero2-offload", "zero2-offload", "--size", "125m", seconds=110),
    titan("titan-llama-fsdp2", gpus=2),
    titan("titan-llama-tp2", "--parallelism.tensor-parallel-degree", "2", gpus=2, share=2),
    titan("titan-moe-ep2", "--parallelism.expert-parallel-degree", "2", **MOE, gpus=2),
    deepspeed("deepspeed-zero3-2", "zero3", "--size", "1b", "--seq", "4096", gpus=2, updates=2),
    trainer(
        "trainer-fsdp2",
        "--fsdp",
        "--fsdp_config",
        f"{EXAMPLES}/huggingface/configs/fsdp2.json",
        gpus=2,
    ),
    titan("titan-8b-fsdp4", *SELECTIVE, flavor="8B", batch=1, gpus=4),
    titan("titan-llama-fsdp4", gpus=4),
    titan(
        "titan-llama-fsdp2-tp2",
        "--parallelism.tensor-parallel-degree",
        "2",
        gpus=4,
        share=2,
    ),
    titan("titan-moe-ep4", "--parallelism.expert-parallel-degree", "4", **MOE, gpus=4),
    megatron(
        "megatron-tp2-dp2",
        "--num-layers",
        "24",
        "--global-batch-size",
        "16",
        "--tensor-model-parallel-size",
        "2",
        "--sequence-parallel",
        gpus=4,
    ),
    megatron(
        "megatron-pp4",
        "--num-layers",
        "24",
        "--global-batch-size",
        "32",
        "--pipeline-model-parallel-size",
        "4",
        gpus=4,
    ),
    deepspeed("deepspeed-zero3-4", "zero3", "--size", "1b", "--seq", "4096", gpus=4, updates=2),
    # 7B: little work in each kernel, so that the host decides
    deepspeed(
        "deepspeed-zero3-7b-4",
        "zero3",
        "--size",
        "7b",
        "--seq",
        "512",
        gpus=4,
        updates=2,
        seconds=110,
    ),
    trainer(
        "trainer-fsdp4",
        "--fsdp",
        "--fsdp_config",
        f"{EXAMPLES}/huggingface/configs/fsdp2.json",
        gpus=4,
    ),
]


def environment(job: Job) -> dict:
    """What the job needs set, on a GPU as under the simulator. Caches stay out of the user's
    home."""
    return {
        "PYTHONPATH": str(HERE),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(ROOT / ASSETS / "hf"),
        "OMP_NUM_THREADS": "8",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        **job.environment,
    }
