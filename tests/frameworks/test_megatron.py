"""Why it exists: Megatron-Core, as released, must train in its parallelisms, and what its log says
must obey what is known of the job: tokens over time, the bytes that parameters and optimizer take,
what a schedule or recomputation changes."""

import importlib.util
import math
import re

import pytest

LINE = re.compile(
    r" iteration +(\d+)/ *(\d+) \| elapsed time per iteration \(ms\): ([\d.]+) \| tokens/s: (\d+) \| "
    r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+) \| lm loss: (\S+) \| loss scale: ([\d.]+) \| "
    r"grad norm: ([\d.]+) \| skipped: ([01]) \| peak memory \(MiB\): (\d+)$",
    re.M,
)
MODEL = (
    "--num-layers",
    2,
    "--hidden-size",
    256,
    "--num-attention-heads",
    4,
    "--vocab-size",
    4000,
    "--seq-length",
    1024,
    "--global-batch-size",
    4,
    "--train-iters",
    2,
    "--swiglu",
)
TOKENS = 4 * 1024
TE = ("--transformer-impl", "transformer_engine")
TP = ("--tensor-model-parallel-size", 2, "--sequence-parallel")
MIB = 2**20

needs_te = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is None,
    reason="Transformer Engine is not installed: make transformer-engine",
)


class Log:
    """A finished job's log lines. `ms`, `peak_mib`: of its last iteration; `parameters`: on rank
    0."""

    def __init__(self, done):
        assert done.returncode == 0, done.stdout + done.stderr
        lines = LINE.findall(done.stdout)
        assert [(line[0], line[1]) for line in lines] == [("1", "2"), ("2", "2")], done.stdout
        for _, _, ms, rate, tflops, _, scale, norm, skipped, _ in lines:
            assert TOKENS / float(rate) * 1e3 == pytest.approx(float(ms), abs=0.051), (
                "0.1 ms is what the log resolves"
            )
            assert 0 < float(tflops) < 989, "more than an H200 can"
            assert float(scale) >= 1 and math.isfinite(float(norm)) and skipped == "0"
        self.ms, self.peak_mib = float(lines[-1][2]), int(lines[-1][9])
        self.parameters = int(
            re.search(r"parameters on rank 0: ([\d,]+)", done.stdout)[1].replace(",", "")
        )
        self.head = next(
            line for line in done.stdout.splitlines() if line.startswith(" world size")
        )


@pytest.fixture
def train(phantora, root):
    """Runs the example with a tiny model on `ranks` GPUs; returns its Log."""

    def run(ranks, *flags, fusion=False):
        return Log(launch(ranks, *flags, fusion=fusion))

    def launch(ranks, *flags, fusion=False):
        script = root / "examples/frameworks/megatron/train_gpt.py"
        return phantora(
            "--quiet",
            "--host-time",
            "none",
            "torchrun",
            "--nproc-per-node",
            ranks,
            script,
            *MODEL,
            *([] if fusion else ["--no-fusion"]),
            *flags,
            timeout=600,
        )

    run.launch = launch
    return run


@pytest.mark.slow
def test_tensor_and_sequence_parallel(train):
    """Its own norm layers refuse sequence parallelism; a job may bring others."""
    log = train(2, *TP, "--use-distributed-optimizer")
    assert "data parallel 1, 4 micro-batches, 1 model chunks" in log.head
    # bf16 weights, float gradients, and the optimizer's float weights and two moments: 18 bytes a
    # parameter
    assert log.peak_mib * MIB > 18 * log.parameters


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_distributed_optimizer_shards_its_state(train):
    """Over two replicas each keeps half of 12 bytes a parameter: the float weights and both
    moments."""
    whole = train(2)
    sharded = train(
        2, "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"
    )
    assert "data parallel 2, 2 micro-batches" in sharded.head
    saved = (whole.peak_mib - sharded.peak_mib) * MIB
    assert saved == pytest.approx(6 * whole.parameters, rel=0.1)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_interleaving_makes_the_pipelines_bubble_smaller(train):
    """With p stages and m micro-batches a step takes 1 + (p - 1) / (m v) of the work, with v chunks
    a stage (Narayanan et al. 2021, section 2.2). Wide layers, so that the layers are the work."""
    wide = (
        "--num-layers",
        4,
        "--hidden-size",
        2048,
        "--num-attention-heads",
        16,
        "--pipeline-model-parallel-size",
        2,
    )
    plain = train(2, *wide)
    chunks = train(2, *wide, "--num-layers-per-virtual-pipeline-stage", 1)
    assert "2 model chunks per rank" in chunks.head
    assert chunks.ms < plain.ms


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_recomputation_trades_time_for_memory(train):
    deep = ("--num-layers", 6, "--micro-batch-size", 2)
    plain = train(1, *deep)
    again = train(1, *deep, "--recompute-granularity", "full")
    assert again.ms > plain.ms and again.peak_mib < plain.peak_mib


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_fusions_that_are_left_to_torch_compile(train):
    log = train(2, "--tensor-model-parallel-size", 2, fusion=True)
    assert log.ms > 0


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_half_precision_scales_the_loss(train):
    assert train(2, "--precision", "fp16").peak_mib > 0


@pytest.mark.nightly
def test_context_parallelism_without_transformer_engine_says_what_it_needs(train):
    done = train.launch(2, "--context-parallel-size", 2)
    assert (
        done.returncode != 0
        and "Context parallelism is only supported by TEDotProductAttention!" in done.stderr
    )


# With Transformer Engine: (ranks, flags, what the first line says)
WITH_TE = {
    "context": (2, ("--context-parallel-size", 2), "data parallel 1, 4 micro-batches"),
    "experts": (
        2,
        ("--num-experts", 4, "--expert-model-parallel-size", 2),
        "data parallel 2, 2 micro-batches",
    ),
    "experts-allgather": (
        2,
        (*TP, "--num-experts", 4, "--moe-token-dispatcher-type", "allgather"),
        "data parallel 1",
    ),
    "experts-grouped": (
        2,
        ("--num-experts", 4, "--expert-model-parallel-size", 2, "--moe-grouped-gemm"),
        "data parallel 2",
    ),
    "fp8": (2, (*TP, "--fp8-format", "hybrid"), "data parallel 1"),
    "everything": (
        8,
        (
            *TP,
            "--num-layers",
            4,
            "--pipeline-model-parallel-size",
            2,
            "--num-layers-per-virtual-pipeline-stage",
            1,
            "--overlap-grad-reduce",
            "--overlap-param-gather",
            "--recompute-granularity",
            "selective",
        ),
        "world size 8, data parallel 2, 2 micro-batches, 2 model chunks",
    ),
    "experts-grouped-8": (
        8,
        (
            *TP,
            "--num-experts",
            8,
            "--expert-model-parallel-size",
            4,
            "--expert-tensor-parallel-size",
            1,
            "--moe-grouped-gemm",
        ),
        "world size 8, data parallel 4, 1 micro-batches",
    ),
    "context-tensor-8": (
        8,
        (*TP, "--context-parallel-size", 2),
        "world size 8, data parallel 2, 2 micro-batches",
    ),
    "fp8-8": (8, (*TP, "--fp8-format", "hybrid"), "world size 8, data parallel 4, 1 micro-batches"),
}


@needs_te
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", WITH_TE)
def test_with_transformer_engine(train, case):
    ranks, flags, head = WITH_TE[case]
    assert head in train(ranks, *TE, "--use-distributed-optimizer", *flags).head
