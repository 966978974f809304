"""Pieces of GPU work whose power and contention are measured: name -> a function that makes a
function that issues it once. Operands are random: zeros draw less power."""

from __future__ import annotations

import torch
import torch.nn.functional as F

GPU = {"device": "cuda", "dtype": torch.bfloat16}


def gemm(m, n, k, dtype=torch.bfloat16):
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    b = torch.randn(n, k, device="cuda", dtype=dtype) * 0.02
    return lambda: F.linear(a, b)


def wgrad(tokens, m, n):
    a, b = torch.randn(tokens, m, **GPU), torch.randn(tokens, n, **GPU)
    return lambda: a.t() @ b


def attention(backward, seq=4096, batch=1, head=128):
    q = torch.randn(batch, 32, seq, head, **GPU, requires_grad=backward)
    k, v = (torch.randn(batch, 8, seq, head, **GPU, requires_grad=backward) for _ in range(2))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    if not backward:
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def attention_whole(backward, head=64, dtype=torch.bfloat16):
    """Without a mask, as in encoders."""
    gpu = {"device": "cuda", "dtype": dtype, "requires_grad": backward}
    q, k, v = (torch.randn(32, 16, 1024, head, **gpu) for _ in range(3))

    def forward():
        return F.scaled_dot_product_attention(q, k, v)

    if not backward:
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def tf32(m, n, k):
    run = gemm(m, n, k, torch.float32)

    def fast():
        torch.backends.cuda.matmul.allow_tf32 = True
        run()
        torch.backends.cuda.matmul.allow_tf32 = False

    return fast


def fp8(m, n, k):
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def convolution(channels, pixels, kernel, dtype=torch.bfloat16, last=True):
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(128, channels, pixels, pixels, device="cuda", dtype=dtype)
    w = torch.randn(channels, channels, kernel, kernel, device="cuda", dtype=dtype) * 0.02
    x, w = x.to(memory_format=form), w.to(memory_format=form)
    return lambda: F.conv2d(x, w, padding=kernel // 2)


def elementwise(megabytes):
    x = torch.randn(megabytes << 19, **GPU)
    y = torch.empty_like(x)
    return lambda: torch.mul(x, 1.5, out=y)


def cast(megabytes):
    x, y = torch.randn(megabytes << 19, **GPU), torch.empty(megabytes << 19, device="cuda")
    return lambda: y.copy_(x)


def rms_norm():
    x, w = torch.randn(16384, 4096, **GPU), torch.randn(4096, **GPU)
    return lambda: F.rms_norm(x, (4096,), w)


def softmax():
    x = torch.randn(2048, 128256, device="cuda")
    return lambda: torch.log_softmax(x, -1)


def adam():
    parameter = torch.randn(1 << 27, device="cuda", requires_grad=True)
    parameter.grad = torch.randn_like(parameter)
    return torch.optim.AdamW([parameter], fused=True).step


def gated(compiled, backward=False):
    """silu(x) * y: two kernels, or one of Triton's; in the backward pass seven, or one."""
    x, y = (torch.randn(16384, 14336, **GPU, requires_grad=backward) for _ in range(2))

    def forward(x, y):
        return F.silu(x) * y

    run = torch.compile(forward, dynamic=False) if compiled else forward
    if not backward:
        return lambda: run(x, y)
    out = run(x, y)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, y), gradient, retain_graph=True)


def normalised(compiled, backward=False):
    """A residual and its RMS norm, in bf16."""
    x, more = (torch.randn(16384, 4096, **GPU, requires_grad=backward) for _ in range(2))
    weight = torch.randn(4096, **GPU, requires_grad=backward)

    def forward(x, more, weight):
        total = x + more
        return F.rms_norm(total, (4096,), weight)

    run = torch.compile(forward, dynamic=False) if compiled else forward
    if not backward:
        return lambda: run(x, more, weight)
    out = run(x, more, weight)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, more, weight), gradient, retain_graph=True)


def rotated(compiled):
    """The rotary embedding of bench/accuracy/models.py."""
    x = torch.randn(4, 4096, 32, 128, **GPU)
    cos, sin = (torch.randn(4096, 1, 64, device="cuda") for _ in range(2))

    def forward(x, cos, sin):
        first, second = x.float().chunk(2, -1)
        turned = first * cos - second * sin, second * cos + first * sin
        return torch.cat(turned, -1).type_as(x)

    run = torch.compile(forward, dynamic=False) if compiled else forward
    return lambda: run(x, cos, sin)


def fill():
    x = torch.empty(1 << 29, **GPU)
    return x.zero_


def total():
    x = torch.randn(1 << 29, **GPU)
    return x.sum


WORK = {
    "gemm_8192_8192_8192": lambda: gemm(8192, 8192, 8192),
    "gemm_4096_4096_4096": lambda: gemm(4096, 4096, 4096),
    "gemm_4096_14336_4096": lambda: gemm(4096, 14336, 4096),
    "gemm_8192_4096_14336": lambda: gemm(8192, 4096, 14336),
    "gemm_4096_1024_4096": lambda: gemm(4096, 1024, 4096),
    "gemm_16384_2048_8192": lambda: gemm(16384, 2048, 8192),
    "gemm_16384_3072_3072": lambda: gemm(16384, 3072, 3072),
    "gemm_2048_2048_2048": lambda: gemm(2048, 2048, 2048),
    "wgrad_8192_4096_14336": lambda: wgrad(8192, 4096, 14336),
    "gemm_tf32_4096": lambda: gemm(4096, 4096, 4096, torch.float32),
    "gemm_fp32_8192": lambda: gemm(8192, 8192, 8192, torch.float32),
    "gemm_fp16_4096_14336_4096": lambda: gemm(4096, 14336, 4096, torch.float16),
    "gemm_tf32_fast_4096": lambda: tf32(4096, 4096, 4096),
    "gemm_tf32_fast_8192": lambda: tf32(8192, 8192, 8192),
    "gemm_fp8_8192": lambda: fp8(8192, 8192, 8192),
    "gemm_fp8_4096": lambda: fp8(4096, 4096, 4096),
    "convolution_3x3_256": lambda: convolution(256, 28, 3),
    "convolution_3x3_512": lambda: convolution(512, 14, 3),
    "convolution_1x1_512": lambda: convolution(512, 28, 1),
    "convolution_3x3_256_fp16": lambda: convolution(256, 28, 3, torch.float16),
    "convolution_3x3_256_tf32": lambda: convolution(256, 28, 3, torch.float32),
    "convolution_3x3_256_first": lambda: convolution(256, 28, 3, last=False),
    "attention_whole_forward": lambda: attention_whole(False),
    "attention_whole_backward": lambda: attention_whole(True),
    "attention_whole_forward_128": lambda: attention_whole(False, 128),
    "attention_whole_backward_128": lambda: attention_whole(True, 128),
    "attention_forward": lambda: attention(False),
    "attention_backward": lambda: attention(True),
    "attention_forward_2k": lambda: attention(False, 2048, 4),
    "attention_backward_2k": lambda: attention(True, 2048, 4),
    "attention_forward_8k": lambda: attention(False, 8192, 2),
    "attention_backward_8k": lambda: attention(True, 8192, 2),
    "attention_forward_16k": lambda: attention(False, 16384),
    "attention_backward_16k": lambda: attention(True, 16384),
    "attention_forward_32k": lambda: attention(False, 32768),
    "attention_backward_32k": lambda: attention(True, 32768),
    "attention_forward_2k_64": lambda: attention(False, 2048, 8, 64),
    "attention_backward_2k_64": lambda: attention(True, 2048, 8, 64),
    "attention_forward_4k_64": lambda: attention(False, 4096, 2, 64),
    "attention_backward_4k_64": lambda: attention(True, 4096, 2, 64),
    "attention_forward_8k_64": lambda: attention(False, 8192, 4, 64),
    "attention_backward_8k_64": lambda: attention(True, 8192, 4, 64),
    "attention_forward_16k_64": lambda: attention(False, 16384, 2, 64),
    "attention_backward_16k_64": lambda: attention(True, 16384, 2, 64),
    "attention_forward_32k_64": lambda: attention(False, 32768, 1, 64),
    "attention_backward_32k_64": lambda: attention(True, 32768, 1, 64),
    "elementwise_8MB": lambda: elementwise(8),
    "elementwise_32MB": lambda: elementwise(32),
    "elementwise_512MB": lambda: elementwise(512),
    "cast_256MB": lambda: cast(256),
    "rms_norm": rms_norm,
    "log_softmax": softmax,
    "fused_adamw": adam,
    "fill_1GB": fill,
    "sum_1GB": total,
    "gated": lambda: gated(False),
    "gated_compiled": lambda: gated(True),
    "gated_backward": lambda: gated(False, True),
    "gated_backward_compiled": lambda: gated(True, True),
    "normalised": lambda: normalised(False),
    "normalised_compiled": lambda: normalised(True),
    "normalised_backward": lambda: normalised(False, True),
    "normalised_backward_compiled": lambda: normalised(True, True),
    "rotated": lambda: rotated(False),
    "rotated_compiled": lambda: rotated(True),
}
