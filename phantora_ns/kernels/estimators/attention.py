"""Time of scaled dot product attention, from a cuDNN graph or from a flash kernel's launch.

Why it exists: attention is one call whose time depends on batch, heads, sequence, head size and the
causal mask. The model: arithmetic runs at a fitted share of peak. Small heads get a smaller share,
because the number of exponentials does not shrink with the head. Blocks of queries run in waves
over the multiprocessors; under a causal mask the multiprocessors do not finish together. The
backward pass does 2.5 times the forward's arithmetic (five products instead of two; FlashAttention-2,
arXiv 2307.08691).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from phantora_ns.kernels.rates import Rates

BACKWARD_RATIO = 2.5
QUERY_BLOCK = 128  # rows of queries that one block handles
CUDNN_QUERIES, CUDNN_KEYS, CUDNN_HEADS = 64, 128, 64
"""cuDNN's kernels pad queries, keys and heads to whole tiles of so many (their names: 64x128x64)."""


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
    bias: bool = False
    """A tensor is added to the scores."""
    dropout: bool = False


def scores(call: Attention) -> int:
    """Pairs of a query and a key that the result needs, over all heads: about half under a causal mask."""
    pairs = call.queries * call.keys
    if call.causal:
        # Query i sees the keys up to its own position. Positions count from the end when the
        # lengths differ.
        short = min(call.queries, call.keys)
        pairs -= short * (short - 1) // 2
    return call.batch * call.heads * pairs


def flop(call: Attention) -> float:
    """Floating-point operations that the result needs."""
    total = 4 * scores(call) * call.head_size
    return total * BACKWARD_RATIO if call.backward else total


def moved_bytes(call: Attention) -> int:
    """Bytes that the call moves: queries, keys, values and the output once.

    The backward pass also moves their gradients. It reads the output and its gradient once more for
    the row sums. It gathers the queries' gradient in fp32, which is written, read and converted:
    twice four bytes per element. Where heads share keys, each head's gradients of keys and values
    are written, then read for the sum. A trace shows these as helper kernels beside the main one.
    """
    query = call.batch * call.heads * call.queries * call.head_size * call.element_bytes
    key = call.batch * call.kv_heads * call.keys * call.head_size * call.element_bytes
    if not call.backward:
        return 2 * query + 2 * key
    gathered = 2 * 4 * query // call.element_bytes
    shared = 4 * key * call.heads // call.kv_heads if 0 < call.kv_heads < call.heads else 0
    return (4 + 2) * query + 4 * key + gathered + shared


def done(call: Attention) -> Attention:
    """The call whose products the kernel really computes. cuDNN pads a head of 8 with zeros to a
    tile of 64, which takes the time of 64, and 400 keys to 512."""
    if call.backend != "cudnn":
        return call
    return replace(
        call,
        queries=_rounded(call.queries, CUDNN_QUERIES),
        keys=_rounded(call.keys, CUDNN_KEYS),
        head_size=_rounded(call.head_size, CUDNN_HEADS),
    )


def _rounded(size: int, step: int) -> int:
    return max(0, -(-size // step) * step)


def blocks(call: Attention) -> int:
    """Blocks of queries, over all heads."""
    return math.ceil(call.queries / QUERY_BLOCK) * call.batch * call.heads


def bias_ns(call: Attention, rates: Rates) -> float:
    """Nanoseconds for adding a tensor to the scores, 0 where there is none."""
    return _of_scores("bias", call, rates) if call.bias else 0.0


def dropout_ns(call: Attention, rates: Rates) -> float:
    """Nanoseconds for drawing a random number for each score, 0 without dropout."""
    return _of_scores("dropout", call, rates) if call.dropout else 0.0


def _of_scores(what: str, call: Attention, rates: Rates) -> float:
    direction = "backward" if call.backward else "forward"
    rate = rates.number(f"attention.{what}_{direction}")
    return scores(call) / (rates.multiprocessors * rates.cycles_per_ns * rate)


def duration_ns(call: Attention, rates: Rates) -> float:
    """Nanoseconds of the call on the GPU, its small helper kernels included."""
    name = f"{call.backend}_{'backward' if call.backward else 'forward'}"
    peak = rates.peak("bf16" if call.element_bytes <= 2 else "tf32")
    exponentials = rates.number("attention.score_cost")
    whole = done(call)
    share = rates.number(f"attention.{name}") * whole.head_size / (whole.head_size + exponentials)
    if call.causal:
        # The last blocks take longer than the average, so the multiprocessors do not finish
        # together: with as many queries as keys they take twice the average time. No call ends
        # before its longest block.
        waves = blocks(call) / rates.multiprocessors
        missed = min(whole.queries, whole.keys) / 2  # keys that the average query does not see
        # of the longest block, which is full and sees all keys, over the average one
        rows = whole.queries / math.ceil(call.queries / QUERY_BLOCK)
        longest = min(whole.queries, QUERY_BLOCK) * whole.keys
        excess = longest / (rows * (whole.keys - missed)) - 1.0
        tail = rates.number("attention.causal_tail") * excess
        share /= max(1.0 + excess, waves + tail) / waves
    products = flop(whole) / (peak * share)
    arithmetic = products + bias_ns(call, rates) + dropout_ns(call, rates)
    moving = moved_bytes(call) / (rates.memory_bytes_per_ns * rates.number("attention.bandwidth"))
    return rates.number(f"attention.{name}_base") + max(arithmetic, flop(whole) / peak) + moving
