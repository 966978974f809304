"""PyTorch's own uses of CUDA graphs, and its profiler: `graphed.py callables|compile|profiler`;
prints OK, or raises."""

import sys

import torch


def callables():
    """torch.cuda.make_graphed_callables: training goes on inside, so the loss falls."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 64, device="cuda"), torch.randn(8, 1, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (torch.zeros_like(x),))
    losses = []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=True)
        loss = (graphed(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses


def compiled():
    """torch.compile(mode="reduce-overhead"): steps that replay graphs."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    ).cuda()
    fast = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(64, 256, device="cuda")
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        # gradients lie in the graphs' memory, which the next step writes to
        model.zero_grad(set_to_none=True)
        fast(x).sum().backward()
    torch.cuda.synchronize()
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(0, create_if_none_exists=False)
    assert manager is not None and manager.roots, "no graph was made"


def profiler():
    """torch.profiler sees the work of each launch of a graph."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(64, 64, device="cuda")
    x @ x
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (x @ x).relu()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        x @ x
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::mm"] == 1 and counts["cudaGraphLaunch"] == 2
    assert sum(count for key, count in counts.items() if "gemm" in key.lower()) == 3


if __name__ == "__main__":
    {"callables": callables, "compile": compiled, "profiler": profiler}[sys.argv[1]]()
    print("OK", flush=True)
