"""Time of scaled dot product attention, from a cuDNN graph or from a flash kernel's launch.

Why it exists: attention is one call whose time depends on batch, heads, sequence, head size and the causal mask. The model:
arithmetic at a fitted share of peak, less for small heads (the exponentials do not shrink with the head) and for short rows
(each block of queries has a start-up as long as a few blocks of keys); blocks run in waves over the multiprocessors. The
backward pass does 2.5 times the forward's arithmetic (five products instead of two; FlashAttention-2, arXiv 2307.08691).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..rates import Rates

BACKWARD_RATIO = 2.5
QUERY_BLOCK = 128  # rows of queries and of keys handled at once
KEY_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Attention:
    """One call's sizes. `backend` is "cudnn" or "flash" and selects the fitted shares."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    causal: bool
    backward: bool
    element_bytes: int = 2
    backend: str = "cudnn"


def flop(call: Attention) -> float:
    """Floating-point operations that the result needs: half the scores under a causal mask."""
    scores = call.queries * call.keys
    if call.causal:  # query i sees keys up to its own place, counted from the end when the lengths differ
        short = min(call.queries, call.keys)
        scores -= short * (short - 1) // 2
    total = 4 * call.batch * call.heads * scores * call.head_size
    return total * BACKWARD_RATIO if call.backward else total


def moved_bytes(call: Attention) -> int:
    """Bytes of queries, keys, values and outputs, and of their gradients in the backward pass, each moved once."""
    query = call.batch * call.heads * call.queries * call.head_size * call.element_bytes
    key = call.batch * call.kv_heads * call.keys * call.head_size * call.element_bytes
    return 4 * query + 4 * key if call.backward else 2 * query + 2 * key


def duration_ns(call: Attention, rates: Rates) -> float:
    """Nanoseconds of the call on the GPU, its small helper kernels included."""
    name = f"{call.backend}_{'backward' if call.backward else 'forward'}"
    peak = rates.peak("bf16" if call.element_bytes <= 2 else "tf32")
    exponentials = rates.number("attention.score_cost")
    share = rates.number(f"attention.{name}") * call.head_size / (call.head_size + exponentials)
    key_blocks = call.keys / KEY_BLOCK * (0.5 if call.causal else 1.0)
    share *= key_blocks / (key_blocks + rates.number("attention.start_blocks"))
    blocks = call.batch * call.heads * math.ceil(call.queries / QUERY_BLOCK)
    waves = blocks / rates.multiprocessors
    quantised = max(1.0, waves + rates.number("attention.tail")) / waves
    arithmetic = flop(call) / (peak * share) * quantised
    moving = moved_bytes(call) / (rates.memory_bytes_per_ns * rates.number("attention.bandwidth"))
    return rates.number(f"attention.{name}_base") + max(arithmetic, flop(call) / peak) + moving
