"""Runs under phantora-ns on one GPU: eight training steps, each with three optimizers. One of them
steps within the backward pass, two step after it, and one of these two is in a container. Prints
the simulated ms of each step."""

import time

import torch


class Container(torch.optim.Optimizer):
    """An optimizer that steps others, as frameworks have for models in parts."""

    def __init__(self, optimizers):
        self.optimizers = optimizers
        super().__init__([p for o in optimizers for g in o.param_groups for p in g["params"]], {})

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()


def main():
    layers = [torch.nn.Linear(2048, 2048, device="cuda") for _ in range(4)]
    eager, first, second, third = (
        torch.optim.AdamW(layer.parameters(), fused=True) for layer in layers
    )

    def in_backward(_):
        eager.step()
        eager.zero_grad()

    for parameter in layers[0].parameters():
        parameter.register_post_accumulate_grad_hook(in_backward)
    container = Container([first, second])
    data = torch.randn(4096, 2048, device="cuda")
    for _ in range(8):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        hidden = data
        for layer in layers:
            hidden = layer(hidden)
        hidden.sum().backward()
        container.step()
        third.step()
        for optimizer in (container, third):
            optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"RESULT {(time.perf_counter() - begin) * 1e3:.6f}", flush=True)


main()
