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


def attention(backward, seq=4096, batch=1):
    q = torch.randn(batch, 32, seq, 128, **GPU, requires_grad=backward)
    k, v = (torch.randn(batch, 8, seq, 128, **GPU, requires_grad=backward) for _ in range(2))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    if not backward:
        return forward
    out = forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


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
    "attention_forward": lambda: attention(False),
    "attention_backward": lambda: attention(True),
    "attention_forward_8k": lambda: attention(False, 8192, 2),
    "attention_backward_8k": lambda: attention(True, 8192, 2),
    "elementwise_8MB": lambda: elementwise(8),
    "elementwise_32MB": lambda: elementwise(32),
    "elementwise_512MB": lambda: elementwise(512),
    "cast_256MB": lambda: cast(256),
    "rms_norm": rms_norm,
    "log_softmax": softmax,
    "fused_adamw": adam,
    "fill_1GB": fill,
    "sum_1GB": total,
}
