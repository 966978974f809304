"""What FSDP runs around its collectives, as a job that a leader records.

    phantora-ns profile --record kernels --leaders 0 --name shards -o FILE torchrun
    --nproc-per-node 1 -m bench.kernels.shards [--seconds 60]

Why it exists: in real steps of FSDP2 on two GPUs, laying out gradients for their reduce-scatter (chunk_cat) was
simulated 19 to 82 % too long, and gathering out parameters (split_with_sizes_copy) 12 % too short. Recorded were
such kernels of eight ranks only. This job lays out the parameters of layers for 2 to 64 ranks as PyTorch's
fully_shard does, on one GPU: a rank's own shards into the all-gather's input, its output into parameters,
gradients into the reduce-scatter's input, and its output into gradients. No layer is one of bench/frameworks or
bench/accuracy. The cases are shuffled; pauses as long as the work keep the GPU cool.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed.fsdp._fully_shard._fsdp_collectives  # noqa: F401 - its operators

from bench.kernels.operators import tensor
from bench.kernels.rested import Work, main, shuffled

HALF, FLOAT = torch.bfloat16, torch.float32
RANKS = (2, 4, 8, 16, 64)
WIDTHS = (
    (1536, 6144, 1536),
    (2560, 9728, 640),
    (3584, 18944, 512),
    (4608, 12288, 1152),
    (6144, 16384, 1024),
)
"""Of a token, within the feed-forward layer, and of all keys."""
VOCABULARY = 49152


def layer(width: int, inner: int, keys: int) -> list[tuple[int, int]]:
    """Shapes of a Llama layer's parameters."""
    return [
        (width, width),
        (keys, width),
        (keys, width),
        (width, width),
        (inner, width),
        (inner, width),
        (width, inner),
        (width, 1),
        (width, 1),
    ]


def works(
    shapes: list[tuple[int, int]], ranks: int, kept: torch.dtype, sent: torch.dtype
) -> Iterator[Work]:
    """`kept`: the type of a rank's own shards; `sent`: that of collectives."""
    shards = [tensor(-(-rows // ranks), columns, dtype=kept) for rows, columns in shapes]
    flat = [shard.view(-1) for shard in shards]
    sizes = [len(shard) for shard in flat]
    total = sum(sizes)
    gathered = tensor(ranks * total, dtype=sent)

    def copy_in() -> None:
        torch._foreach_copy_(gathered[:total].split(sizes), flat)

    yield "shards in", copy_in
    parameters = [tensor(ranks * size, dtype=sent) for size in sizes]

    def copy_out() -> None:
        torch.ops.fsdp.split_with_sizes_copy(
            gathered.view(ranks, -1), sizes, 1, out=[p.view(ranks, -1) for p in parameters]
        )

    yield "parameters out", copy_out
    gradients = [tensor(*shape, dtype=sent) for shape in shapes]
    padded = [-(-len(gradient) // ranks) * ranks for gradient in gradients]
    numbers = sum(
        rows * gradient.shape[1] for rows, gradient in zip(padded, gradients, strict=True)
    )
    for reduced in dict.fromkeys((sent, FLOAT)):
        out = tensor(numbers, dtype=reduced)
        yield (
            f"gradients in, {reduced}",
            lambda out=out: torch.ops.fsdp.chunk_cat(gradients, 0, ranks, out=out.view(ranks, -1)),
        )
    mine = tensor(numbers // ranks, dtype=sent)
    if kept != sent:
        yield "gradient's type", lambda: mine.to(kept)
    yield "mean", lambda: mine.div_(ranks)


def cases() -> Iterator[Work]:
    units = [layer(*widths) for widths in WIDTHS] + [
        [(VOCABULARY, width)] for width, _, _ in WIDTHS
    ]
    return shuffled(
        (
            f"{shapes[0]} {ranks} {kept} {sent}",
            lambda a=shapes, r=ranks, k=kept, s=sent: works(a, r, k, s),
        )
        for shapes in units
        for ranks in RANKS
        for kept, sent in ((FLOAT, HALF), (HALF, HALF), (FLOAT, FLOAT))
    )


if __name__ == "__main__":
    main(__doc__, cases)
