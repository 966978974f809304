"""Why it exists: a job that steers by values runs twice with one command line. With COMPUTED=1 it
stands for a GPU that computes: the emulated GPU does nothing, so the job writes its kernels'
results itself. Without it nothing computes these values, and only a replay can give them.

Writes what each rank has read to OUT/RANK.json, a list of steps. STEPS: their number.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

# tokens, experts, choices: scores that are small enough to have values, and that are not
SIZES = (
    (512, 16, 2),
    (4096, 64, 4),
)


def computed(step, rank):
    """What the GPU of a rank computes in a step: (routes, best expert) of each size, and the
    loss."""
    numbers = torch.Generator().manual_seed(1000 * rank + step)
    scores = [torch.rand(tokens, experts, generator=numbers) for tokens, experts, _ in SIZES]
    routes = [
        (score.topk(size[2])[1], score.argmax(1)) for score, size in zip(scores, SIZES, strict=True)
    ]
    return routes, torch.rand((), generator=numbers)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    steps = []
    for step in range(int(os.environ.get("STEPS", 3))):
        truth, loss = computed(step, rank) if os.environ.get("COMPUTED") else (None, None)
        told = {"routes": [], "best": [], "received": []}
        for at, (tokens, experts, top) in enumerate(SIZES):
            scores = F.linear(
                torch.randn(tokens, 1024, device="cuda"), torch.randn(experts, 1024, device="cuda")
            )
            routes = torch.empty(tokens, top, dtype=torch.int64, device="cuda")
            best = torch.empty(tokens, dtype=torch.int64, device="cuda")
            if truth:
                routes.copy_(truth[at][0]), best.copy_(truth[at][1])
            torch.topk(scores, top, out=(torch.empty(tokens, top, device="cuda"), routes))
            torch.argmax(scores, 1, out=best)
            told["routes"].append(routes.tolist()), told["best"].append(best.tolist())
            counts = torch.bincount(routes.view(-1), minlength=experts)
            everywhere = counts[: experts - experts % dist.get_world_size()].contiguous()
            received = torch.empty_like(everywhere)
            dist.all_to_all_single(received, everywhere)
            told["received"].append(received.tolist())
        told["loss"] = (loss.cuda() if truth else scores.sum()).item()
        steps.append(told)
    Path(os.environ["OUT"], f"{rank}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
