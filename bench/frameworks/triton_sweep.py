"""What torch.compile makes of the small operators of Llama, mixture-of-experts and vision training,
over realistic shapes.

    phantora-ns profile --record kernels --leaders 0 --name triton-calibration -o FILE torchrun
    --nproc-per-node 1 \
        bench/frameworks/triton_sweep.py --set calibration
    python -m bench.frameworks.triton_sweep --set evaluation --trace OUT.jsonl

Why it exists: Triton's kernels are a third of a compiled step, and their times come from two runs
of one model. Led by a real GPU this job records Inductor's pointwise, reduction and persistent
reduction kernels, forward and backward, as a database. What is in `evaluation` is not in
`calibration`: other widths, other numbers of rows. With --trace it runs without phantora-ns, and
CUPTI's name, grid, block and duration of each kernel go to OUT.jsonl.

The cases of one shape are compiled together, as graphs of independent inputs: Inductor fuses none
of them with another, and compiles their kernels side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

DEVICE = "cuda"
REPEATS = 12


@dataclass(frozen=True)
class Text:
    """A transformer's sizes; `dtype` of its activations."""

    tokens: int
    width: int
    hidden: int
    heads: int
    vocabulary: int
    experts: int
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Vision:
    batch: int
    channels: int
    size: int
    channels_last: bool
    dtype: torch.dtype = torch.bfloat16


SETS = {
    "calibration": [
        Text(8192, 4096, 14336, 32, 32000, 64),
        Text(4096, 2048, 5632, 16, 128256, 8),
        Text(16384, 1024, 2816, 16, 50304, 128),
        Vision(256, 64, 56, True),
        Vision(64, 128, 64, False),
        Text(2048, 8192, 28672, 64, 32000, 16),
        Text(32768, 768, 3072, 12, 16000, 32),
        Vision(128, 512, 28, True),
        Text(4096, 4096, 11008, 32, 32000, 8, torch.float32),
        Text(65536, 256, 1024, 4, 4096, 4),
        Text(1024, 5120, 13824, 40, 102400, 256),
        Vision(32, 320, 64, False),
        Text(32768, 3072, 8192, 24, 8192, 64),
        Text(16384, 512, 2048, 8, 32768, 16, torch.float32),
        Vision(256, 256, 14, False),
    ],
    "evaluation": [
        Text(8192, 2048, 8192, 32, 128256, 64),
        Text(4096, 5120, 13824, 40, 32000, 16),
        Vision(128, 256, 56, True),
        Text(24576, 1536, 6144, 24, 50304, 96),
        Vision(64, 256, 32, False),
        Text(2048, 4096, 14336, 32, 128256, 8, torch.float32),
        Text(12288, 7168, 18432, 56, 16384, 128),
    ],
}


# ---- the operators, as models write them ----


def residual_norm(x, residual, w):
    total = x + residual
    return total, F.rms_norm(total, (total.shape[-1],), w, 1e-5)


def rope(q, cos, sin):
    left, right = q.chunk(2, -1)
    return q * cos + torch.cat((-right, left), -1) * sin


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float(), targets)


def to_float8(x):
    scale = 448.0 / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)


def combine(parts, scores):
    return (parts.float() * scores.unsqueeze(-1)).sum(1).to(parts.dtype)


def adam(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return p * 0.9999 - 1e-4 * m / (v.sqrt() + 1e-8), m, v


def attention_scores(scores):
    return F.softmax(scores.float() * 0.125, -1).to(scores.dtype)


def batch_norm_relu(x, w, b):
    return F.relu(F.batch_norm(x, None, None, w, b, True))


def group_norm_silu(x, w, b):
    return F.silu(F.group_norm(x, 32, w, b))


class Inputs:
    """Random tensors; activations and weights want gradients."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def plain(self, *shape, dtype=None):
        return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype or self.dtype)

    def __call__(self, *shape, dtype=None):
        return self.plain(*shape, dtype=dtype).requires_grad_()


def text_cases(s: Text) -> list[tuple[str, object, tuple]]:
    """(name, function, inputs)."""
    new = Inputs(s.dtype)
    t, h, f, d = s.tokens, s.width, s.hidden, s.width // s.heads
    logits = min(t, (1 << 30) // s.vocabulary)
    length = min(2048, t)
    angles = new.plain(1, length, 1, d, dtype=torch.float32)
    return [
        ("rms_norm", lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5), (new(t, h), new(h))),
        ("residual_norm", residual_norm, (new(t, h), new(t, h), new(h))),
        (
            "layer_norm",
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            (new(t, h), new(h), new(h)),
        ),
        (
            "layer_norm fp32 weights",
            lambda x, w, b: F.layer_norm(x.float(), (x.shape[-1],), w, b).to(x.dtype),
            (new(t, h), new(h, dtype=torch.float32), new(h, dtype=torch.float32)),
        ),
        (
            "qk_norm",
            lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
            (new(t, s.heads, d), new(d)),
        ),
        ("swiglu", lambda gate, up: F.silu(gate) * up, (new(t, f), new(t, f))),
        ("gelu", lambda x, b: F.gelu(x + b, approximate="tanh"), (new(t, f), new(f))),
        ("squared relu", lambda x: F.relu(x).square(), (new(t, f),)),
        (
            "rope",
            rope,
            (
                new(t // length, length, s.heads, d),
                angles.cos().to(s.dtype),
                angles.sin().to(s.dtype),
            ),
        ),
        (
            "cross_entropy",
            cross_entropy,
            (new(logits, s.vocabulary), torch.randint(s.vocabulary, (logits,), device=DEVICE)),
        ),
        ("attention_scores", attention_scores, (new(max(1, t // 16), length),)),
        ("router", lambda x: F.softmax(x.float(), -1), (new(t, s.experts),)),
        ("combine", combine, (new(t, 4, h), new(t, 4, dtype=torch.float32))),
        (
            "embedding",
            lambda table, index: F.embedding(index, table),
            (new(s.vocabulary, h), torch.randint(s.vocabulary, (t,), device=DEVICE)),
        ),
        (
            "heads apart",
            lambda x: (x * 0.5).transpose(1, 2).contiguous(),
            (new(t // length, length, s.heads, d),),
        ),
        ("split and join", lambda a, b: torch.cat((a * 2, b + 1), -1), (new(t, h), new(t, h // 2))),
        ("to_float8", to_float8, (new.plain(t, h),)),
        (
            "to_float8 rows",
            lambda x: (x.abs().amax(-1), x.float().square().mean(-1)),
            (new.plain(t, f),),
        ),
        ("sum of columns", lambda x: x.float().sum(0), (new.plain(t, h),)),
        ("sum", lambda x: x.float().square().sum(), (new.plain(t, f),)),
        ("cast", lambda x: x.to(torch.bfloat16), (new.plain(f, h, dtype=torch.float32),)),
        ("adam", adam, tuple(new.plain(f, h, dtype=torch.float32).abs() for _ in range(4))),
    ]


def vision_cases(s: Vision) -> list[tuple[str, object, tuple]]:
    new = Inputs(s.dtype)

    def image(scale=1):
        made = new.plain(s.batch, s.channels, s.size // scale, s.size // scale)
        return made.to(
            memory_format=torch.channels_last if s.channels_last else torch.contiguous_format
        ).requires_grad_()

    def weights():
        return new(s.channels, dtype=torch.float32), new(s.channels, dtype=torch.float32)

    return [
        ("batch_norm_relu", batch_norm_relu, (image(), *weights())),
        ("add_relu", lambda x, y: F.relu(x + y), (image(), image())),
        (
            "group_norm_silu",
            group_norm_silu,
            (image(), *(w.to(s.dtype).detach().requires_grad_() for w in weights())),
        ),
        ("pool", lambda x: x.mean((2, 3)), (image(),)),
        ("max_pool", lambda x: F.max_pool2d(x, 2), (image(),)),
        ("upsample", lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), (image(2),)),
        (
            "layer_norm of patches",
            lambda x, w, b: F.layer_norm(x.flatten(2).transpose(1, 2), (x.shape[1],), w, b),
            (image(), *(w.to(s.dtype).detach().requires_grad_() for w in weights())),
        ),
        (
            "modulate",
            lambda x, shift, scale: x * (1 + scale[:, :, None, None]) + shift[:, :, None, None],
            (image(), new(s.batch, s.channels), new(s.batch, s.channels)),
        ),
    ]


def prepare(shape: Text | Vision):
    """step(): forward and backward of all cases of a shape, compiled."""
    cases = text_cases(shape) if isinstance(shape, Text) else vision_cases(shape)
    functions, inputs = [case[1] for case in cases], [case[2] for case in cases]

    def together(inputs):
        return [function(*given) for function, given in zip(functions, inputs, strict=True)]

    torch._dynamo.reset()
    compiled = torch.compile(together, dynamic=False)
    gradients: list[torch.Tensor] = []

    def step():
        outputs = []
        for out in compiled(inputs):
            outputs += [
                part
                for part in (out if isinstance(out, (tuple, list)) else (out,))
                if part.requires_grad
            ]
        if not gradients:
            gradients.extend(torch.randn_like(out) for out in outputs)
        torch.autograd.backward(outputs, gradients)
        for given in inputs:
            for tensor in given:
                tensor.grad = None

    return step


def traced(step, shape, stream) -> None:
    """Adds one line for each kernel of a step: name, grid, block, registers, shared memory and the
    durations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = defaultdict(list)
    for event in events:
        if event.get("cat") == "kernel":
            told = event["args"]
            kernels[
                event["name"],
                tuple(told["grid"]),
                tuple(told["block"]),
                told.get("shared memory"),
                told.get("registers per thread"),
            ].append(event["dur"])
    for (name, grid, block, shared, registers), durations in kernels.items():
        stream.write(
            json.dumps(
                {
                    "shape": repr(shape),
                    "name": name,
                    "grid": grid,
                    "block": block,
                    "shared": shared,
                    "registers": registers,
                    "us": [round(us, 3) for us in durations],
                }
            )
            + "\n"
        )
    stream.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=SETS, required=True)
    parser.add_argument("--trace", type=Path, help="write CUPTI's view here")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin no further shape after so long"
    )
    parser.add_argument("--shapes", type=int, default=1 << 30, help="only the first so many")
    options = parser.parse_args()
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    begin, failed = time.monotonic(), 0
    for shape in SETS[options.set][: options.shapes]:
        start = time.monotonic()
        if start - begin > options.seconds:
            print(f"no time left for {shape}", flush=True)
            continue
        try:
            step = prepare(shape)
            step()
            torch.cuda.synchronize()
            ready = time.monotonic()
            for _ in range(REPEATS):
                step()
            torch.cuda.synchronize()
            if options.trace:
                with options.trace.open("a") as stream:
                    traced(step, shape, stream)
            print(
                f"{time.monotonic() - begin:6.1f}  {shape}: compiled in {ready - start:.1f} s, ran in "
                f"{time.monotonic() - ready:.1f} s, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
                flush=True,
            )
        except Exception as error:  # the other shapes are worth measuring whatever failed here
            failed += 1
            print(f"{shape}: FAILED: {str(error)[:1500]}", flush=True)
        step = None
        torch.cuda.empty_cache()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
