"""The time of kernels against the GPU's clock, which a spinning kernel shows to the microsecond.

    python -m bench.power.spin OUT_DIR [--tiny]

Why it exists: NVML tells a clock every 100 ms, and the limiter acts within a few milliseconds. A
kernel of one thread that spins for a number of cycles (`torch.cuda._sleep`) tells the clock at the
moment at which it runs, and draws almost nothing. Placed between other kernels, it says which of
them follow the clock, and how far, and how the clock answers when the work changes. One GPU, one
minute. Rule: clocks and limits are never set.

OUT_DIR/spin.jsonl.gz, a line per section: `labels`, what was issued between each two spins;
`names`, and `rows` of [name, begin ns, duration ns] in the order in which they ran. A spin is a row
whose name holds `spin_kernel` and which takes less than 0.1 ms; longer ones keep the GPU idle.
`states` holds every kernel after 24 ms or more of a product with pauses between; the other sections
are turns of work and rest.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from bench.power.work import GPU, attention, gated, gemm, normalised, rotated, wgrad

SPIN = 100_000
CYCLES_PER_MS = 1_900_000
STATE_MS, BETWEEN_MS = 260, 24
REPEATS = 4


def rotary(batch):
    """The strided products of floats of a rotary embedding."""
    x = torch.randn(batch, 8192 // batch, 32, 128, device="cuda")
    cos = torch.randn(8192 // batch, 1, 64, device="cuda")
    first = x.chunk(2, -1)[0]
    return lambda: first * cos


def silu(backward):
    x = torch.randn(8192, 14336, **GPU, requires_grad=backward)
    if not backward:
        return lambda: F.silu(x)
    out, gradient = F.silu(x), torch.randn_like(x)
    return lambda: torch.autograd.grad(out, x, gradient, retain_graph=True)


def gelu():
    x = torch.randn(8192, 14336, **GPU)
    return lambda: F.gelu(x, approximate="tanh")


def norm(backward, layer=False):
    x = torch.randn(8192, 4096, **GPU, requires_grad=backward)
    weight = torch.ones(4096, **GPU, requires_grad=backward)

    def forward():
        return F.layer_norm(x, (4096,), weight) if layer else F.rms_norm(x, (4096,), weight)

    if not backward:
        return forward
    out = forward()
    gradient = torch.randn_like(x)
    return lambda: torch.autograd.grad(out, (x, weight), gradient, retain_graph=True)


def unary(operator, *operands):
    return lambda: operator(*operands)


def cast(source, target):
    x = torch.randn(1 << 26, device="cuda").to(source)
    return lambda: x.to(target)


def cross_entropy(backward):
    x = torch.randn(2048, 128256, device="cuda", requires_grad=backward)
    target = torch.randint(128256, (2048,), device="cuda")
    if not backward:
        return lambda: F.cross_entropy(x, target)
    loss = F.cross_entropy(x, target)
    return lambda: torch.autograd.grad(loss, x, retain_graph=True)


def lists(operator):
    parts = [torch.randn(4096, 1024, device="cuda") for _ in range(24)]
    return lambda: operator(parts)


def adam():
    parameters = [torch.randn(4096, 4096, device="cuda", requires_grad=True) for _ in range(6)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW(parameters, fused=True).step


def chunk_cat():
    """How FSDP2 lays gradients out for a reduce-scatter."""
    parts = [torch.randn(4096, 4096, **GPU) for _ in range(4)]
    out = torch.empty(8, sum(part.numel() for part in parts) // 8, device="cuda")
    return lambda: torch.ops.fsdp.chunk_cat(parts, 0, 8, out=out)


def split_copy():
    """How FSDP2 takes parameters out of an all-gather."""
    import torch.distributed.fsdp

    sizes = [1 << 21] * 4
    gathered = torch.randn(8, sum(sizes), **GPU)
    outs = [torch.empty(8, size, **GPU) for size in sizes]
    return lambda: torch.split_with_sizes_copy(gathered, sizes, dim=1, out=outs)


def embedding():
    table = torch.randn(128256, 4096, **GPU, requires_grad=True)
    tokens = torch.randint(128256, (8192,), device="cuda")
    out = F.embedding(tokens, table)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, table, gradient, retain_graph=True)


def kernels(tiny):
    import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401 - defines chunk_cat

    wide = torch.randn(8192, 14336, **GPU)
    other = torch.randn_like(wide)
    words = torch.randn(8192, 4096, **GPU)
    found = {
        "gemm 8192x8192x8192": gemm(8192, 8192, 8192),
        "gemm 8192x14336x4096": gemm(8192, 14336, 4096),
        "gemm 4096x4096x4096": gemm(4096, 4096, 4096),
        "gemm 4096x1024x4096": gemm(4096, 1024, 4096),
        "gemm 8192x2560x5120": gemm(8192, 2560, 5120),
        "wgrad 8192x4096x14336": wgrad(8192, 4096, 14336),
        "attention forward 4k": attention(False),
        "attention backward 4k": attention(True),
        "attention forward 8k": attention(False, 8192, 1),
        "attention backward 8k": attention(True, 8192, 1),
        "rotary, batch 1": rotary(1),
        "rotary, batch 2": rotary(2),
        "silu": silu(False),
        "silu backward": silu(True),
        "gelu": gelu(),
        "rms norm": norm(False),
        "rms norm backward": norm(True),
        "layer norm": norm(False, True),
        "layer norm backward": norm(True, True),
        "mul bf16": unary(torch.mul, wide, other),
        "add bf16": unary(torch.add, words, words),
        "copy bf16": unary(torch.clone, wide),
        "transpose": unary(lambda x: x.t().contiguous(), words),
        "cat": unary(lambda x: torch.cat((x, x), -1), words),
        "to float": cast(torch.bfloat16, torch.float32),
        "to bf16": cast(torch.float32, torch.bfloat16),
        "cross entropy": cross_entropy(False),
        "cross entropy backward": cross_entropy(True),
        "sum": unary(torch.sum, wide),
        "foreach norm": lists(lambda x: torch._foreach_norm(x)),
        "foreach mul": lists(lambda x: torch._foreach_mul_(x, 0.5)),
        "foreach sqrt": lists(lambda x: torch._foreach_abs(x)),
        "fused AdamW": adam(),
        "fsdp chunk cat": chunk_cat(),
        "fsdp split copy": split_copy(),
        "embedding backward": embedding(),
        "dropout": unary(F.dropout, words),
        "fill": unary(torch.zeros_like, wide),
        "compiled silu x": gated(True),
        "compiled silu x backward": gated(True, True),
        "compiled add, rms norm": normalised(True),
        "compiled rotary": rotated(True),
    }
    return dict(list(found.items())[:6]) if tiny else found


class Section:
    """Issues work between spins and notes what it was."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def spin(self, label: str) -> None:
        """The work since the last spin was `label`."""
        self.labels.append(label)
        torch.cuda._sleep(SPIN)


def rest(ms: float) -> None:
    torch.cuda._sleep(int(ms * CYCLES_PER_MS))


def background(product, product_ms: float, duty: float, ms: float) -> None:
    """The product for a share of the time; else a thread that spins."""
    if duty == 0:
        rest(ms)
        return
    for _ in range(max(1, round(ms * duty / product_ms))):
        product()
        if duty < 1:
            rest(product_ms * (1 - duty) / duty)


def states(section: Section, work, tiny: bool) -> None:
    """Every kernel in every state of the GPU."""
    product = work["gemm 8192x14336x4096"]
    duties = (0.0, 1.0) if tiny else (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    for duty in duties:
        background(product, 1.3, duty, STATE_MS)
        for name, issue in work.items():
            background(product, 1.3, duty, BETWEEN_MS)
            section.spin(f"background {duty}")
            for _ in range(REPEATS):
                issue()
                section.spin(name)
        torch.cuda.synchronize()


PATTERNS = {  # (kind of work, ms) in turn
    "idle, product, idle": (("idle", 400), ("product", 700), ("idle", 300)),
    "memory, product, memory": (("memory", 400), ("product", 700), ("memory", 400)),
    "attention": (("idle", 300), ("attention", 700)),
    **{
        f"product, idle, {ms} ms": (("product", ms), ("idle", ms)) * (900 // ms // 2)
        for ms in (10, 30, 100, 300)
    },
    **{
        f"product, memory, {ms} ms": (("product", ms), ("memory", ms)) * (900 // ms // 2)
        for ms in (10, 30, 100, 300)
    },
    "product 70, idle 30": (("product", 70), ("idle", 30)) * 9,
    "product 200, memory 60": (("product", 200), ("memory", 60)) * 5,
}


def pattern(section: Section, work, turns) -> None:
    issue = {
        "product": (work["gemm 8192x14336x4096"], 1.3),
        "memory": (work["copy bf16"], 0.12),
        "attention": (work["attention forward 4k"], 1.03),
        "idle": (lambda: rest(1.0), 1.0),
    }
    section.spin("begin")
    for kind, ms in turns:
        call, each_ms = issue[kind]
        per_spin = max(1, round(1.0 / each_ms))
        for _ in range(max(1, round(ms / each_ms / per_spin))):
            for _ in range(per_spin):
                call()
            section.spin(kind)
    torch.cuda.synchronize()


def reduced(recorded) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    found = sorted((e for e in events if e.get("cat") in kinds), key=lambda e: e["ts"])
    names: dict[str, int] = defaultdict(lambda: len(names))
    zero = found[0]["ts"] if found else 0
    rows = [
        [names[e["name"]], round(1000 * (e["ts"] - zero)), round(1000 * e["dur"])] for e in found
    ]
    return {"names": list(names), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a rehearsal")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    work = kernels(options.tiny)
    work.setdefault("copy bf16", unary(torch.clone, torch.randn(8192, 14336, **GPU)))
    work.setdefault("attention forward 4k", attention(False))
    for issue in work.values():
        issue()
    torch.cuda.synchronize()
    sections = [("states", lambda section: states(section, work, options.tiny))]
    for name, turns in PATTERNS.items():
        sections.append((name, lambda section, turns=turns: pattern(section, work, turns)))
    for name, run in sections[:3] if options.tiny else sections:
        section = Section()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            run(section)
            torch.cuda.synchronize()
        line = {"section": name, "labels": section.labels, **reduced(recorded)}
        data = gzip.compress((json.dumps(line, separators=(",", ":")) + "\n").encode(), 6)
        with open(options.folder / "spin.jsonl.gz", "ab") as file:
            file.write(data)
        print(name, len(section.labels), len(line["rows"]), flush=True)


if __name__ == "__main__":
    main()
