"""What is measured without a model: rings alone, rings beside one kernel, waiting, host calls.

Why it exists: a step's clock and length on several GPUs follow from what a ring draws, what it
takes from a kernel beside it, and what a GPU draws that waits in a collective. Rule: every row
holds `begin` and `end` (ns since the epoch), between which the samples belong to it. Operands are
random, since zeros draw less power, and results are averages, which stay in range.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from bench.events import us_per_call
from bench.gpus.jobs import free, mesh_of

MB = 1 << 20
COLLECTIVES = {  # bytes of the whole: a layer's of 1B, a layer's of 8B, and DDP's buckets
    "all_gather-bf16-116MB": ("all_gather", torch.bfloat16, 116 * MB),
    "reduce_scatter-fp32-232MB": ("reduce_scatter", torch.float32, 232 * MB),
    "all_gather-bf16-416MB": ("all_gather", torch.bfloat16, 416 * MB),
    "reduce_scatter-fp32-832MB": ("reduce_scatter", torch.float32, 832 * MB),
    "all_reduce-bf16-25MB": ("all_reduce", torch.bfloat16, 25 * MB),
    "all_reduce-bf16-500MB": ("all_reduce", torch.bfloat16, 500 * MB),
    "all_gather-bf16-32MB": ("all_gather", torch.bfloat16, 32 * MB),  # TP's activations
    "reduce_scatter-bf16-32MB": ("reduce_scatter", torch.bfloat16, 32 * MB),
}
BESIDE = {  # large, so that those that cover a kernel for a second fit the launch queue
    "all_gather-bf16-1664MB": ("all_gather", torch.bfloat16, 1664 * MB),
    "reduce_scatter-fp32-1664MB": ("reduce_scatter", torch.float32, 1664 * MB),
}


class Scale:
    """How long things are kept up: `seconds` each; `tiny` also makes them small."""

    def __init__(self, seconds: float = 0.8, tiny: bool = False) -> None:
        self.seconds = 0.01 if tiny else seconds
        self.rest = 0.01 if tiny else 0.25
        self.divisor = 64 if tiny else 1
        self.calls = 10 if tiny else 200


def collective(name: str, group, scale: Scale):
    kind, dtype, size = (COLLECTIVES | BESIDE)[name]
    world = dist.get_world_size(group)
    part = size // scale.divisor // dtype.itemsize // world
    whole = torch.randn(part * world, device="cuda", dtype=dtype)
    share = torch.randn(part, device="cuda", dtype=dtype)
    average = dist.ReduceOp.AVG
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, share, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, whole, op=average, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, op=average, group=group),
    }[kind]


def kernels(scale: Scale) -> dict:
    """name -> a function that builds the work: bound by products, by attention, by memory."""
    bf16 = dict(device="cuda", dtype=torch.bfloat16)

    def product():
        a, b = torch.randn(8192, 4096, **bf16), torch.randn(14336, 4096, **bf16) * 0.02
        return lambda: F.linear(a, b)

    def attention():
        q = torch.randn(1, 32, 8192, 128, **bf16)
        k, v = torch.randn(1, 8, 8192, 128, **bf16), torch.randn(1, 8, 8192, 128, **bf16)
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def elementwise():
        x = torch.randn((1 << 28) // scale.divisor, **bf16)
        y = torch.empty_like(x)
        return lambda: torch.mul(x, 1.5, out=y)

    return {"product": product, "attention": attention, "elementwise": elementwise}


def kept_up(issue, count: int, chunks: int = 12) -> dict:
    """`count` calls without a pause: us per call in each of `chunks` pieces."""
    count = max(1, count // chunks)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(chunks + 1)]
    begin = time.time_ns()
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(count):
            issue()
        mark.record()
    marks[-1].synchronize()  # not the GPU: a ring beside it goes on for longer
    end = time.time_ns()
    torch.cuda.synchronize()
    series = [
        round(a.elapsed_time(b) / count * 1e3, 2) for a, b in zip(marks, marks[1:], strict=False)
    ]
    late = sorted(series[chunks // 2 :])
    us = late[len(late) // 2]
    return dict(begin=begin, end=end, us=us, series=series, calls=count * chunks, last=marks[-1])


def rings(gpus: int, scale: Scale, meet, agree) -> list[dict]:
    """Idle, each collective kept up with nothing beside it, and what waiting in one draws."""
    group = mesh_of(gpus)["dp"].get_group()
    rows = []
    meet()
    torch.cuda.synchronize()
    begin = time.time_ns()
    time.sleep(1.5 * scale.seconds)
    rows.append({"phase": "idle", "begin": begin, "end": time.time_ns()})
    for name in COLLECTIVES:
        issue = collective(name, group, scale)
        for _ in range(2):
            issue()
        torch.cuda.synchronize()
        meet()
        us = agree(us_per_call(issue, 4))
        time.sleep(scale.rest)
        meet()
        rows.append({"phase": name, **kept_up(issue, int(scale.seconds * 1e6 / us))})
        del rows[-1]["last"]
        del issue
        free()
    issue = collective("all_gather-bf16-32MB", group, scale)
    meet()
    begin = time.time_ns()
    late = dist.get_rank(group) == 0
    if late:
        time.sleep(1.5 * scale.seconds)
    issue()
    torch.cuda.synchronize()
    rows.append({"phase": "waiting", "late": late, "begin": begin, "end": time.time_ns()})
    return rows


def beside(gpus: int, scale: Scale, meet, agree) -> list[dict]:
    """Three kernels kept up alone and wholly covered by a ring that is kept up."""
    group = mesh_of(gpus)["dp"].get_group()
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    rows = []
    for kernel, build in kernels(scale).items():
        with torch.cuda.stream(main):
            work = build()
            us_per_call(work, 2)
            base = agree(us_per_call(work, 4))
            meet()
            alone = kept_up(work, int(scale.seconds * 1e6 / base))
        del alone["last"]
        rows.append({"phase": f"{kernel} alone", **alone})
        for name in BESIDE:
            with torch.cuda.stream(side):
                issue = collective(name, group, scale)
                us_per_call(issue, 2)
                meet()
                ring = agree(us_per_call(issue, 4))
            torch.cuda.synchronize()
            time.sleep(scale.rest)
            meet()
            covers = int(scale.seconds * 1e6 * 1.25 / ring) + 3
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            with torch.cuda.stream(side):
                marks[0].record()
                for _ in range(covers):
                    issue()
                marks[1].record()
            with torch.cuda.stream(main):
                result = kept_up(work, int(scale.seconds * 1e6 / base / 1.5))
            rows.append(
                {
                    "phase": f"{kernel} beside {name}",
                    "ring_alone_us": round(ring, 1),
                    "ring_us": round(marks[0].elapsed_time(marks[1]) / covers * 1e3, 1),
                    "covers": covers,
                    # below 0: the ring ended before the kernels did
                    "ring_left_ms": round(result.pop("last").elapsed_time(marks[1]), 2),
                    **result,
                }
            )
            del issue
            free()
        del work
        free()
    return rows


def host_calls(gpus: int, scale: Scale, meet, agree) -> list[dict]:
    """ns until calls return, no profiler, one rank alone and all at once: the least of five."""
    group = mesh_of(gpus)["dp"].get_group()
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    flat, share = torch.randn(64 * gpus, device="cuda"), torch.randn(64, device="cuda")
    event, stream = torch.cuda.Event(), torch.cuda.current_stream()
    own = {
        "mul out=": lambda: torch.mul(x, 1.5, out=y),
        "add": lambda: x + y,
        "mm": lambda: x @ y,
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "empty": lambda: torch.empty(1024, device="cuda"),
        "event record": event.record,
        "wait for an event": lambda: stream.wait_event(event),
        "copy": lambda: y.copy_(x),
    }
    together = {
        "all_gather": lambda: dist.all_gather_into_tensor(flat, share, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(share, flat, group=group),
        "all_reduce": lambda: dist.all_reduce(share, op=dist.ReduceOp.AVG, group=group),
    }
    rows = []
    for label, calls, active in (
        ("rank 0 alone", own, dist.get_rank() == 0),
        ("all ranks", {**own, **together}, True),
    ):
        meet()
        if not active:
            continue
        for name, call in calls.items():
            call()
            torch.cuda.synchronize()
            times = []
            for _ in range(5):
                at = time.perf_counter_ns()
                for _ in range(scale.calls):
                    call()
                times.append((time.perf_counter_ns() - at) // scale.calls)
                torch.cuda.synchronize()
            rows.append({"phase": label, "call": name, "ns": min(times), "all_ns": times})
    meet()
    return rows
