"""Two ranks: a whole training step with its all-reduces captured, against the same steps run
eagerly; prints OK, or raises."""

import os

import torch
import torch.distributed as dist


def model_and_optimizer():
    """The same small model whenever it is called."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    ).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)


def step(model, optimizer, x, y):
    """One data-parallel step with a clipped gradient; returns the loss of all ranks and the
    gradient's norm."""
    optimizer.zero_grad(set_to_none=True)
    loss = (model(x) - y).square().mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean, norm


def on_side_stream(what):
    """As PyTorch's notes on CUDA graphs ask for before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        what()
    torch.cuda.current_stream().wait_stream(stream)


def training(rank):
    """Losses and norms of captured steps must be those of eager ones, to the bit."""
    generator = torch.Generator().manual_seed(rank)
    batches = [
        (
            torch.randn(8, 16, generator=generator).cuda(),
            torch.randn(8, 1, generator=generator).cuda(),
        )
        for _ in range(4)
    ]
    model, optimizer = model_and_optimizer()
    expected = [tuple(v.item() for v in step(model, optimizer, x, y)) for x, y in batches]
    model, optimizer = model_and_optimizer()
    start = [p.detach().clone() for p in model.parameters()]
    x, y = (t.clone() for t in batches[0])
    on_side_stream(lambda: step(model, optimizer, x, y))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mean, norm = step(model, optimizer, x, y)
    with torch.no_grad():
        for p, old in zip(model.parameters(), start, strict=True):
            p.copy_(old)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
    got = []
    for batch_x, batch_y in batches:
        x.copy_(batch_x), y.copy_(batch_y)
        graph.replay()
        got.append((mean.item(), norm.item()))
    assert got == expected and len(set(got)) == len(got), (got, expected)


def overlap():
    """A captured all-reduce runs beside captured compute: together they take less than one after
    the other."""
    big, w = (
        torch.zeros(16 << 20, device="cuda"),
        torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16),
    )

    def timed(compute, communicate):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work = dist.all_reduce(big, async_op=True) if communicate else None
            for _ in range(4 if compute else 0):
                w @ w
            if work:
                work.wait()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        dist.barrier()
        torch.cuda.synchronize()
        begin.record(), graph.replay(), end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    both, compute, communication = timed(True, True), timed(True, False), timed(False, True)
    assert max(compute, communication) < both < compute + communication, (
        both,
        compute,
        communication,
    )


def mistakes():
    """What may not be captured fails by the driver's codes, and the next capture works."""
    x = torch.ones(4, device="cuda")
    for what in (lambda: x.sum().item(), torch.cuda.synchronize, lambda: torch.nonzero(x)):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                what()
        except RuntimeError as error:
            assert "not permitted when stream is capturing" in str(error.__context__), (
                error.__context__
            )
        else:
            raise AssertionError("captured what cannot be captured")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise = torch.rand(4, device="cuda")
        x.add_(1)
    assert x.tolist() == [1] * 4, "a capture computes nothing"
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(noise.tolist())
    assert x.tolist() == [3] * 4 and drawn[0] != drawn[1] and all(0 <= v < 1 for v in drawn[0])


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    training(dist.get_rank())
    overlap()
    mistakes()
    print(f"OK {dist.get_rank()}\n", end="", flush=True)  # one write: ranks share the pipe
    dist.destroy_process_group()
