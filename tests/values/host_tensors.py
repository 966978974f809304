"""What a process sees of its host tensors, as one line of JSON. Runs with phantora-ns and without.

`plain` is without it. Only `large`, `grown` and what needs a GPU may differ with --host-tensors auto.
"""

import hashlib
import json
import os
import sys
import tempfile
import time

import torch
import torch.nn as nn

MIB, WIDTH, LAYERS = 2**20, 2048, 48  # 768 MiB of floats


def memory(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def digest(*tensors):
    taken = hashlib.sha256()
    for tensor in tensors:
        taken.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return taken.hexdigest()


def model(layers):
    torch.manual_seed(1)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])


def optimizers():
    """Small tensors in the hands of the optimizers that also step large ones."""
    taken = {}
    for how in ({}, {"foreach": True}, {"fused": True}):
        torch.manual_seed(2)
        large, small = nn.Parameter(torch.zeros(2 * MIB)), nn.Parameter(torch.linspace(-1, 1, 1000))
        optimizer = torch.optim.AdamW([large, small], **how)
        for step in range(3):
            large.grad, small.grad = torch.zeros(2 * MIB), torch.cos(step * torch.arange(1000.0))
            optimizer.step()
        taken[next(iter(how), "single")] = digest(small)
    return taken


def refusals():
    """What PyTorch refuses, it refuses for hollow tensors too."""
    large, wrong = torch.empty(MIB), torch.empty(MIB + 1)
    found = []
    for refused in (
        lambda: large.add_(wrong),
        lambda: large.copy_(wrong),
        lambda: large + wrong,
        lambda: torch.cat([large.view(1024, -1), wrong.view(1, -1)]),
        lambda: torch.sqrt_(torch.arange(MIB)),
    ):
        try:
            refused()
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])
    return found


def shapes():
    """Sizes, strides and types of results."""
    large = torch.empty(1024, 2048).normal_()
    results = [
        large.t() * 2,
        large.double(),
        large.to(torch.bfloat16),
        large[:, :1024] + 1,
        torch.cat([large, large], dim=1),
        torch.where(large > 0, large, 0.5),
        large.clone().t().contiguous(),
        torch.add(large, large, out=torch.empty(1024, 2048)),
        torch.randn(1024, 1024, dtype=torch.complex64),
        large + torch.ones(2048, dtype=torch.float64),
        large.expand(2, -1, -1).clone(),
        large > 0,
    ]
    return [(list(one.shape), list(one.stride()), str(one.dtype)) for one in results]


def saved(layers):
    state = layers.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(state, path)
        size, disk = os.path.getsize(path), os.stat(path).st_blocks * 512
        back = torch.load(path)
    layers.load_state_dict(back)
    return {
        "equal": all(
            back[name].shape == one.shape and back[name].dtype == one.dtype
            for name, one in state.items()
        ),
        "small": digest(*[one for name, one in back.items() if one.nbytes < MIB]),
        "size": size,
        "disk": disk,
    }


def passed(work):
    """Simulated ns that `work` takes."""
    before = time.time_ns()
    work()
    return time.time_ns() - before


def charged():
    """Simulated ns for a tensor, and for one of twice its size."""
    tensors = torch.empty(64 * MIB), torch.empty(128 * MIB)
    for tensor in tensors:
        tensor.fill_(1.0)  # page faults are charged once
    return {
        "draw": [passed(tensor.normal_) for tensor in tensors],
        "move": [passed(tensor.neg_) for tensor in tensors],
    }


def child():
    """A forked child's tensors stay real."""
    read, write = os.pipe()
    if os.fork() == 0:
        torch.set_num_threads(1)
        os.write(write, str(float(torch.full((MIB,), 2.0).sum())).encode())
        os._exit(0)
    os.wait()
    return float(os.read(read, 100))


def main(part):
    simulated = part != "plain"
    if simulated:
        torch.cuda.synchronize()
    before = memory("VmRSS")
    small = model(8)
    small_digest = digest(*small.parameters())
    large = model(LAYERS)
    grown = memory("VmHWM") - before
    answer = {
        "small": small_digest,
        "biases_are_real": all(float(layer.bias.detach().abs().max()) > 0 for layer in large),
        "large": digest(*large.parameters()),
        "integers": digest(torch.arange(MIB), torch.arange(3 * MIB).view(3, -1).t().contiguous()),
        "mask": int((torch.arange(4 * MIB) % 3 == 0).sum()),
        "optimizer": optimizers(),
        "refusals": refusals(),
        "shapes": shapes(),
        "grown": grown,
        "bytes": sum(one.nbytes for one in large.parameters()),
        "child": child(),
    }
    if simulated:
        answer["saved"] = saved(large)
        answer["charged"] = charged()
        bias = digest(large[0].bias)
        moved = large.to("cuda")
        answer["on_device"] = [str(moved[0].weight.device), list(moved[0].weight.shape)]
        answer["bias_on_device"] = digest(moved[0].bias.cpu()) == bias
    print("HOST", json.dumps(answer))


def main_reads(kind):
    """What counts as a read of a hollow tensor, and what does not. The report has the number."""
    torch.cuda.synchronize()
    large = model(LAYERS)[-1].weight.detach()
    zeros = torch.zeros(4 * MIB)
    if kind == "nothing":
        (
            large * 2,
            large.to("cuda"),
            large.clone().view(-1)[5:],
            large.shape,
            torch.zeros_like(large),
        )
        assert zeros.sum().item() == 0
        return
    large[3, 4].item()
    large.sum()
    large.gt(0)
    torch.isnan(large)
    torch.equal(large, large.clone())
    large[0].clone()
    large[0].to("cuda").sum().item()


if __name__ == "__main__":
    main_reads(sys.argv[2]) if sys.argv[1] == "reads" else main(sys.argv[1])
