"""A job for tests of `phantora-ns fit`: steps that need what the arguments say, in MiB."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--weights", type=int, default=64)
parser.add_argument("--leak", type=int, default=0, help="more in each step, up to --leak-until")
parser.add_argument("--leak-until", type=int, default=10**9)
parser.add_argument("--caught", type=int, default=0, help="asked for before the steps, in vain")
parser.add_argument("--without-optimizer", action="store_true")
parser.add_argument("--fail-in", type=int, default=-1)
options = parser.parse_args()


def take(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")


model = torch.nn.Linear(1024, options.weights << 8, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
if options.caught:
    try:
        take(options.caught)
    except torch.cuda.OutOfMemoryError:
        print("went on without")
kept = []
for step in range(options.steps):
    if step == options.fail_in:
        raise ValueError("the job's own failure")
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    if not options.without_optimizer:
        optimizer.step()
    optimizer.zero_grad()
    if options.leak and step < options.leak_until:
        kept.append(take(options.leak))
    print("step", step + 1, flush=True)
print("the end", torch.cuda.max_memory_reserved())
