"""Runs under a leader and under a simulated rank, which must both name the same GPU work:
`operators.py PART...`."""

import sys
import time

import torch
import torch.nn.functional as functional

DEVICE = "cuda"


class Block(torch.nn.Module):
    """A linear layer, a norm and attention: the kernels of a transformer's step."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.heads = (
            torch.nn.Linear(512, 512),
            torch.nn.LayerNorm(512),
            torch.nn.Linear(512, 1536),
        )

    def forward(self, x):
        x = self.norm(functional.gelu(self.first(x)))
        q, k, v = self.heads(x).view(4, 256, 8, 192).transpose(1, 2).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


def step():
    model = Block().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 256, 512, device=DEVICE, dtype=torch.bfloat16)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def convolution():
    nn = torch.nn
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
    ]
    nn.Sequential(*layers).to(DEVICE)(torch.randn(8, 3, 64, 64, device=DEVICE)).mean().backward()


def embedding():
    table = torch.nn.Embedding(1000, 256, device=DEVICE)
    table(torch.randint(0, 1000, (16, 128), device=DEVICE)).sum().backward()
    logits = torch.randn(128, 1000, device=DEVICE, requires_grad=True)
    functional.cross_entropy(logits, torch.zeros(128, dtype=torch.long, device=DEVICE)).backward()


def copies():
    there = torch.randn(1 << 16).to(DEVICE)
    same = there.clone()
    same.cpu()
    pinned = torch.randn(1 << 16).pin_memory().to(DEVICE, non_blocking=True)
    pinned.zero_()
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        same + 1
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 1000
    assert there.sum().item() == there.sum().item()
    torch.nonzero(there)


def triton():
    @torch.compile
    def compiled(x, w):
        return functional.silu(x * w + 1).sum(-1)

    compiled(
        torch.randn(64, 1024, device=DEVICE, requires_grad=True), torch.randn(1024, device=DEVICE)
    ).sum().backward()


for part in sys.argv[1:]:
    globals()[part]()
torch.cuda.synchronize()
# From torch 2.12 on an autograd thread may still hold its last task here. If the interpreter ends
# first, that thread ends the process: "terminate called without an active exception".
time.sleep(0.2)
