"""Records a Kineto trace of single operators over a grid of shapes, on a real GPU: what the
estimators are calibrated on.

Why it exists: every efficiency in phantora_ns/data/gpus/*.toml comes from such a trace, and `python
-m phantora_ns.kernels.evaluation.estimator_errors TRACE` says how far the estimators are from it. Needs torch
with CUDA and one GPU.

    python -m bench.kernels.record OUT.json.gz [families...]

Each case runs until the clocks have settled under its own load (a GEMM in a training step runs at
the clock that the power limit leaves, not at the boost clock of a short burst), then a few times
under the profiler, between buffers large enough that inputs do not sit in the L2 cache unless they
would in training too.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

REPEATS = 5
SETTLE_S = 0.03
DEVICE = "cuda"


def tensor(*shape, dtype=torch.bfloat16, grad=False):
    value = torch.empty(*shape, device=DEVICE, dtype=dtype)
    if value.is_floating_point():
        value.normal_(0, 0.5)
    return value.requires_grad_(grad)


def gemms():
    """aten::mm in the three directions of a linear layer, and squares; bf16 mostly, some fp16,
    fp32, TF32 and fp8."""
    layers = [
        (768, 768),
        (2048, 768),
        (2048, 2048),
        (512, 2048),
        (8192, 2048),
        (2048, 8192),
        (4096, 4096),
        (1024, 4096),
        (14336, 4096),
        (4096, 14336),
        (5120, 5120),
        (13824, 5120),
        (5120, 13824),
        (32000, 4096),
        (128256, 2048),
    ]
    for tokens in (128, 512, 2048, 4096, 8192, 16384):
        for out, inner in layers:
            if tokens * out > 1 << 31:
                continue
            x, w, dy = tensor(tokens, inner), tensor(out, inner), tensor(tokens, out)
            yield "gemm", lambda x=x, w=w: x @ w.t()
            yield "gemm", lambda dy=dy, w=w: dy @ w
            yield "gemm", lambda dy=dy, x=x: dy.t() @ x
    for size in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            a, b = tensor(size, size, dtype=dtype), tensor(size, size, dtype=dtype)
            yield "gemm", lambda a=a, b=b: a @ b
    for rows in (1, 8, 32, 64):
        for out, inner in ((4096, 4096), (14336, 4096), (128256, 4096)):
            x, w = tensor(rows, inner), tensor(out, inner)
            yield "gemm", lambda x=x, w=w: x @ w.t()
    batched = (
        (32, 4096, 4096, 128),
        (32, 4096, 128, 4096),
        (256, 512, 512, 64),
        (64, 1024, 1024, 1024),
        (8, 2048, 4096, 1024),
    )
    for batch, m, n, k in batched:
        a, b = tensor(batch, m, k), tensor(batch, k, n)
        yield "gemm", lambda a=a, b=b: torch.bmm(a, b)
    one = torch.ones((), device=DEVICE)
    for m, n, k in (
        (2048, 2048, 2048),
        (4096, 4096, 4096),
        (4096, 14336, 4096),
        (8192, 8192, 8192),
        (512, 4096, 4096),
    ):
        a, b = tensor(m, k).to(torch.float8_e4m3fn), tensor(n, k).to(torch.float8_e4m3fn)
        yield (
            "gemm",
            lambda a=a, b=b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16),
        )


def tf32_gemms():
    torch.backends.cuda.matmul.allow_tf32 = True
    for size in (512, 1024, 2048, 4096, 8192):
        a, b = tensor(size, size, dtype=torch.float32), tensor(size, size, dtype=torch.float32)
        yield "gemm_tf32", lambda a=a, b=b: a @ b


def attention():
    """Scaled dot product attention, forward and backward, by cuDNN and by the flash kernel."""
    shapes = [
        (1, 32, 8, 4096, 128),
        (1, 32, 32, 8192, 128),
        (4, 12, 12, 1024, 64),
        (8, 12, 12, 2048, 64),
        (2, 16, 16, 512, 64),
        (1, 40, 40, 4096, 128),
        (1, 32, 8, 16384, 128),
        (4, 32, 8, 2048, 128),
        (1, 8, 2, 4096, 128),
        (16, 16, 16, 197, 64),
    ]
    for batch, heads, kv_heads, length, size in shapes:
        for causal in (True, False):
            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
                q = tensor(batch, length, heads, size).transpose(1, 2).detach().requires_grad_()
                k, v = (
                    tensor(batch, length, kv_heads, size).transpose(1, 2).detach().requires_grad_()
                    for _ in range(2)
                )
                dout = tensor(batch, length, heads, size).transpose(1, 2)

                def both(
                    q=q, k=k, v=v, dout=dout, causal=causal, backend=backend, gqa=heads != kv_heads
                ):
                    with sdpa_kernel(backend):
                        out = F.scaled_dot_product_attention(
                            q, k, v, is_causal=causal, enable_gqa=gqa
                        )
                    torch.autograd.grad(out, (q, k, v), dout)

                yield f"attention {batch} {heads} {kv_heads} {length} {size} {int(causal)}", both


def elementwise():
    for power in range(8, 30, 2):
        n = 1 << power
        for dtype in (torch.bfloat16, torch.float32):
            if n * dtype.itemsize > 1 << 31:
                continue
            a, b, out = (
                tensor(n, dtype=dtype),
                tensor(n, dtype=dtype),
                torch.empty(n, device=DEVICE, dtype=dtype),
            )
            other = torch.float32 if dtype == torch.bfloat16 else torch.bfloat16
            yield "add", lambda a=a, b=b, out=out: torch.add(a, b, out=out)
            yield "mul_scalar", lambda a=a, out=out: torch.mul(a, 2.0, out=out)
            yield "silu", lambda a=a: F.silu(a)
            yield "gelu", lambda a=a: F.gelu(a)
            yield "silu_backward", lambda a=a, b=b: torch.ops.aten.silu_backward(a, b)
            yield "copy", lambda a=a, out=out: out.copy_(a)
            yield "cast", lambda a=a, other=other: a.to(other)
            yield "fill", lambda out=out: out.fill_(1.0)
            yield "dropout", lambda a=a: torch.native_dropout(a, 0.1, True)
            yield "sum", lambda a=a: a.sum()
            yield "compare", lambda a=a, b=b: a > b
            yield "where", lambda a=a, b=b: torch.where(a > b, a, b)
            if n >= 1 << 12:
                rows = tensor(n >> 11, 2048, dtype=dtype)
                bias = tensor(2048, dtype=dtype)
                column = tensor(n >> 11, 1, dtype=dtype)
                yield "broadcast", lambda rows=rows, bias=bias: rows + bias
                yield "broadcast_column", lambda rows=rows, column=column: rows * column
                yield "halves", lambda rows=rows: rows[:, :1024] * rows[:, 1024:]
                yield "transpose", lambda rows=rows: rows.t().contiguous()
                yield "sum_rows", lambda rows=rows: rows.sum(1)
                yield "sum_columns", lambda rows=rows: rows.sum(0)
                yield "neg_half", lambda rows=rows: rows[:, 1024:].neg()
                yield "cat", lambda rows=rows: torch.cat((rows[:, :1024], rows[:, 1024:]), 1)
                yield "cat_whole", lambda rows=rows: torch.cat((rows, rows), 0)
                yield "amax", lambda rows=rows: rows.amax(1)
                yield "cumsum", lambda rows=rows: rows.cumsum(1)


def rows():
    """Kernels that work row by row: norms, softmax, losses, embeddings, indices."""
    for count in (128, 2048, 4096, 16384):
        for width in (768, 2048, 4096, 5120, 8192, 32000, 128256):
            if count * width > 1 << 30:
                continue
            for dtype in (torch.bfloat16, torch.float32):
                x, dy = (
                    tensor(count, width, dtype=dtype, grad=True),
                    tensor(count, width, dtype=dtype),
                )
                if width <= 8192:
                    w, b = (
                        tensor(width, dtype=dtype, grad=True),
                        tensor(width, dtype=dtype, grad=True),
                    )
                    yield (
                        "rms_norm",
                        lambda x=x, w=w, dy=dy, n=width: F.rms_norm(x, (n,), w).backward(dy),
                    )
                    yield (
                        "layer_norm",
                        lambda x=x, w=w, b=b, dy=dy, n=width: F.layer_norm(x, (n,), w, b).backward(
                            dy
                        ),
                    )
                yield "softmax", lambda x=x, dy=dy: F.softmax(x, -1).backward(dy)
                if dtype == torch.float32 and width >= 8192:
                    target = torch.randint(0, width, (count,), device=DEVICE)
                    yield (
                        "cross_entropy",
                        lambda x=x, target=target: F.cross_entropy(x, target).backward(),
                    )
    for tokens in (512, 4096, 16384):
        for vocabulary, width in ((32000, 768), (128256, 2048), (128256, 4096)):
            table = tensor(vocabulary, width, grad=True)
            index = torch.randint(0, vocabulary, (tokens,), device=DEVICE)
            dy = tensor(tokens, width)
            yield (
                "embedding",
                lambda table=table, index=index, dy=dy: F.embedding(index, table).backward(dy),
            )
            yield "index", lambda table=table, index=index: table.detach()[index]
            yield (
                "gather",
                lambda table=table, dy=dy: table.detach()[: dy.shape[0]].gather(1, (dy > 0).long()),
            )
            yield "sort", lambda index=index: index.sort()
            yield "topk", lambda dy=dy: dy.topk(2)


def optimizers():
    for sizes in (
        [1 << 20] * 30,
        [4096 * 4096, 4096 * 1024, 14336 * 4096, 4096],
        [1 << 12] * 200,
        [1 << 28],
    ):
        p, g, m, v = ([torch.randn(n, device=DEVICE) for n in sizes] for _ in range(4))
        steps = [torch.zeros((), device=DEVICE) for _ in sizes]
        half = [t.to(torch.bfloat16) for t in p]
        yield (
            "fused_adamw",
            lambda p=p, g=g, m=m, v=v, s=steps: torch._fused_adamw_(
                p,
                g,
                m,
                v,
                [],
                s,
                lr=1e-4,
                beta1=0.9,
                beta2=0.95,
                weight_decay=0.1,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            ),
        )
        yield "foreach_mul", lambda p=p: torch._foreach_mul_(p, 0.999)
        yield "foreach_add", lambda p=p, g=g: torch._foreach_add_(p, g, alpha=0.001)
        yield "foreach_norm", lambda g=g: torch._foreach_norm(g)
        yield "foreach_copy", lambda p=p, half=half: torch._foreach_copy_(half, p)
        yield "foreach_lerp", lambda p=p, g=g: torch._foreach_lerp_(p, g, 0.1)


def copies():
    for power in range(10, 31, 2):
        n = 1 << power
        host, pinned = (
            torch.empty(n, dtype=torch.uint8),
            torch.empty(n, dtype=torch.uint8, pin_memory=True),
        )
        device, second = (
            torch.empty(n, dtype=torch.uint8, device=DEVICE),
            torch.empty(n, dtype=torch.uint8, device=DEVICE),
        )
        yield "h2d", lambda a=device, b=host: a.copy_(b)
        yield "h2d_pinned", lambda a=device, b=pinned: a.copy_(b, non_blocking=True)
        yield "d2h", lambda a=device, b=host: b.copy_(a)
        yield "d2h_pinned", lambda a=device, b=pinned: b.copy_(a, non_blocking=True)
        yield "d2d", lambda a=device, b=second: b.copy_(a)
        yield "memset", lambda a=device: a.zero_()


def convolutions():
    torch.backends.cudnn.benchmark = True
    layers = [
        (3, 64, 7, 2, 224),
        (64, 64, 1, 1, 56),
        (64, 64, 3, 1, 56),
        (64, 256, 1, 1, 56),
        (256, 128, 1, 1, 56),
        (128, 128, 3, 2, 56),
        (128, 512, 1, 1, 28),
        (256, 256, 3, 1, 14),
        (512, 512, 3, 1, 7),
        (512, 2048, 1, 1, 7),
        (3, 768, 16, 16, 224),
    ]
    formats = (
        (torch.bfloat16, torch.channels_last),
        (torch.bfloat16, torch.contiguous_format),
        (torch.float32, torch.contiguous_format),
    )
    for batch in (32, 128):
        for cin, cout, kernel, stride, size in layers:
            padding = kernel // 2 if kernel < 16 else 0
            for dtype, layout in formats:
                x = (
                    tensor(batch, cin, size, size, dtype=dtype)
                    .to(memory_format=layout)
                    .detach()
                    .requires_grad_(cin != 3)
                )
                w = (
                    tensor(cout, cin, kernel, kernel, dtype=dtype)
                    .to(memory_format=layout)
                    .detach()
                    .requires_grad_()
                )
                dy = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding))

                def both(x=x, w=w, dy=dy, stride=stride, padding=padding):
                    F.conv2d(x, w, stride=stride, padding=padding).backward(dy)

                yield "conv", both


FAMILIES = {
    "gemms": gemms,
    "tf32": tf32_gemms,
    "attention": attention,
    "elementwise": elementwise,
    "rows": rows,
    "optimizers": optimizers,
    "copies": copies,
    "convolutions": convolutions,
}


def main(out: str, *names: str) -> None:
    torch.manual_seed(0)
    for name in names or FAMILIES:
        flush = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
        ) as recorded:
            for label, case in FAMILIES[name]():
                try:
                    case()
                except RuntimeError as error:
                    print(f"{name} {label}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                recorded.toggle_collection_dynamic(
                    False, [ProfilerActivity.CPU, ProfilerActivity.CUDA]
                )
                torch.cuda.synchronize()
                end = time.perf_counter() + SETTLE_S
                while time.perf_counter() < end:
                    case()
                    torch.cuda.synchronize()
                recorded.toggle_collection_dynamic(
                    True, [ProfilerActivity.CPU, ProfilerActivity.CUDA]
                )
                for _ in range(REPEATS):
                    if name not in ("gemms", "tf32", "attention"):
                        flush.zero_()
                    with record_function(f"case {label}"):
                        case()
                torch.cuda.synchronize()
        recorded.export_chrome_trace(out.replace(".json", f".{name}.json"))
        print(name, "done", round(time.perf_counter(), 1), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
