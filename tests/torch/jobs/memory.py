"""Runs as one process with two GPUs: what a job sees of GPU memory, and that small values survive
wherever they are taken.

`memory.py step` is the training step alone, for a second process with other allocator settings.
"""

import base64
import io
import json
import os
import pickle
import re
import resource
import subprocess
import sys

import torch
import torch.nn as nn
from common import check, differs, run_checks, say

GIB = 1 << 30


def host_bytes():
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def training_step():
    """A step of a model of about 1 GiB; returns the allocator's figures."""
    torch.cuda.reset_peak_memory_stats()
    model = nn.Sequential(
        *(nn.Linear(4096, 4096, device="cuda") for _ in range(12)),
        nn.Linear(4096, 1000, device="cuda"),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (512, 768, 600):
        model(torch.zeros(rows, 4096, device="cuda")).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def refused(bytes_wanted):
    """The message with which an allocation of this size fails; None if it does not."""
    try:
        tensor = torch.empty(bytes_wanted, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    del tensor


@check
def figures_of_the_device():
    free, total = torch.cuda.mem_get_info()
    say(
        "DEVICE",
        free=free,
        total=total,
        reserved=torch.cuda.memory_reserved(),
        properties_total=torch.cuda.get_device_properties(0).total_memory,
        name=torch.cuda.get_device_name(),
    )
    yield from differs("properties", torch.cuda.get_device_properties(0).total_memory, total)
    yield from differs("devices", torch.cuda.device_count(), 2)
    before = torch.cuda.mem_get_info(1)[0]
    tensor = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda:1")
    yield from differs("other device", before - torch.cuda.mem_get_info(1)[0], 3 * GIB)
    yield from differs("this device", torch.cuda.mem_get_info(0)[0], free)
    del tensor


@check
def most_of_the_gpu_in_pieces():
    host, free = host_bytes(), torch.cuda.mem_get_info()[0]
    pieces = [torch.zeros(GIB, dtype=torch.uint8, device="cuda") for _ in range(130)]
    yield from differs("free", torch.cuda.mem_get_info()[0], free - 130 * GIB)
    pieces[3][5] = 1
    yield from differs("written", [pieces[3][5].item(), pieces[4][5].item()], [1, 0])
    yield from differs("allocated", torch.cuda.memory_allocated() >= 130 * GIB, True)
    del pieces
    torch.cuda.empty_cache()
    yield from differs("free after", torch.cuda.mem_get_info()[0] >= free, True)
    if host_bytes() - host > 64 << 20:
        yield f"130 GiB of zeros on the GPU took {(host_bytes() - host) >> 20} MiB of the host"


@check
def too_much_is_refused():
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    keep = torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    message = refused(60 * GIB) or "no error"
    figures = (
        f"GPU 0 has a total capacity of {total / GIB:.2f} GiB "
        f"of which {(free - 100 * GIB) / GIB:.2f} GiB is free."
    )
    for part in (
        f"CUDA out of memory. Tried to allocate 60.00 GiB. {figures}",
        "100.00 GiB is allocated by PyTorch",
    ):
        if part not in message:
            yield f"{message!r} lacks {part!r}"
    yield from differs(
        "largest that fits", refused((free - 100 * GIB) // (2 << 20) * (2 << 20)), None
    )
    del keep
    torch.cuda.empty_cache()
    yield from differs("free again", torch.cuda.mem_get_info()[0], free)
    yield from differs("now it fits", refused(60 * GIB), None)
    torch.cuda.empty_cache()


@check
def a_fraction_of_the_gpu():
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(0.25)
    message = refused(40 * GIB) or "no error"
    if f"{total // 4 / GIB:.2f} GiB allowed" not in message:
        yield message
    yield from differs("within", refused(30 * GIB), None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@check
def expandable_segments():
    plain = training_step()
    torch.cuda.empty_cache()
    run = subprocess.run(
        [sys.executable, __file__, "step"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    if run.returncode:
        yield run.stderr[-1500:]
        return
    other = json.loads(run.stdout)
    # plain ones leave small remainders unsplit
    if not other["allocated"] <= plain["allocated"] <= other["allocated"] * 1.001:
        yield f"allocated {other['allocated']}, with plain segments {plain['allocated']}"
    if not other["allocated"] <= other["reserved"] <= plain["reserved"]:
        yield f"reserved {other['reserved']}, with plain segments {plain['reserved']}, allocated {other['allocated']}"
    if "CUDA out of memory. Tried to allocate 150.00 GiB" not in other["refused"]:
        yield other["refused"]
    yield from differs("taken", other["taken"], other["taken_by_allocator"])
    yield from differs("values", other["values"], [0, 1, 4, 9])


@check
def history_of_the_allocator():
    """torch.cuda.memory._snapshot(): what was allocated, replayed, is what the allocator counts."""
    from torch.cuda import _memory_viz

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(context=None)
    kept = [torch.zeros(512 * count, device="cuda") for count in range(1, 40)]
    del kept[::2]
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    live = most = before
    for event in snapshot["device_traces"][0]:
        live += signs.get(event["action"], 0) * event["size"]
        most = max(most, live)
    yield from differs("live at the end", live, torch.cuda.memory_allocated())
    yield from differs("live at most", most, torch.cuda.max_memory_allocated())
    page = _memory_viz.trace_plot(snapshot)
    shown = pickle.loads(base64.b64decode(max(re.findall(r"[A-Za-z0-9+/=]+", page), key=len)))
    yield from differs("in PyTorch's viewer", shown["segments"], snapshot["segments"])


@check
def pinned_copies():
    for count in (1, 1000, 1 << 18):  # up to 1 MiB
        source = torch.arange(count, dtype=torch.int32).pin_memory()
        yield from differs(f"pinned {count}", source.is_pinned(), True)
        device = source.to("cuda", non_blocking=True)
        back = torch.empty(count, dtype=torch.int32, pin_memory=True)
        back.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        yield from differs(f"there and back {count}", back, source)
        yield from differs(f"pageable {count}", source.clone().cuda().clone().cpu(), source)
    yield from differs("slice", torch.arange(100).cuda()[10:20].cpu(), torch.arange(10, 20))
    yield from differs(
        "strided", torch.arange(100).view(10, 10).cuda().t()[2].cpu(), torch.arange(2, 100, 10)
    )
    small = torch.arange(12.0).view(3, 4)
    device = torch.zeros(3, 4, device="cuda")
    device.t().copy_(small.t())
    yield from differs("into a transposed one", device, small)
    yield from differs(
        "cast on the way", small.cuda().to(torch.bfloat16).cpu(), small.to(torch.bfloat16)
    )


@check
def large_tensors_read_zero():
    # 32 MiB of values in small tensors
    stale = [torch.full((1 << 12,), 7.0, device="cuda") for _ in range(2000)]
    del stale
    torch.cuda.empty_cache()
    whole = torch.full((1 << 20,), 3.0, device="cuda")  # 4 MiB: large, so without values
    yield from differs("full", whole[:8], torch.zeros(8))
    for view in whole.view(-1, 1 << 12).unbind():
        view.fill_(5.0)
    yield from differs("a written part", whole[17].item(), 5.0)
    yield from differs("result of a large operator", (whole + 1)[:8], torch.zeros(8))
    del whole
    fresh = torch.ones(1 << 20, device="cuda")  # the same memory again
    yield from differs("memory of values used again", fresh[:8], torch.zeros(8))
    middle = torch.ones(1 << 15, device="cuda")  # 128 KiB: in the allocator's pool of small blocks
    yield from differs("middling", middle[:8], torch.zeros(8))
    yield from differs("sum", fresh.sum().item(), 0.0)
    large = torch.arange(1 << 20).float().pin_memory().cuda()
    yield from differs("copied from the host", large[5:9].tolist(), [0] * 4)
    labels = torch.arange(1 << 19).pin_memory().cuda()  # 4 MiB of integers: these have values
    yield from differs("integers from the host", labels[5:9].tolist(), [5, 6, 7, 8])


@check
def operators_that_tell_the_host():
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-5, 6, (40,), generator=generator).float()
    y = torch.randint(0, 9, (6, 7), generator=generator)
    on = {"x": x.cuda(), "y": y.cuda()}
    cases = {
        "nonzero": lambda x, y: y.nonzero(),
        "nonzero_tuple": lambda x, y: torch.stack(y.nonzero(as_tuple=True)),
        "masked_select": lambda x, y: x.masked_select(x > 1),
        "mask": lambda x, y: x[x < 0],
        "unique": lambda x, y: y.unique(),
        "unique_counts": lambda x, y: torch.stack(y.unique(return_counts=True)),
        "equal": lambda x, y: torch.tensor(x.equal(x + 0)),
        "unequal": lambda x, y: torch.tensor(x.equal(x + 1)),
        "sort": lambda x, y: x.sort(stable=True).values,
        "argsort": lambda x, y: x.argsort(stable=True),
        "topk": lambda x, y: x.topk(5).values,
        "cumsum": lambda x, y: y.cumsum(1),
        "index_put": lambda x, y: x.clone().index_put_((y[0],), x.sum()),
        "where": lambda x, y: torch.where(x > 0, x, -x),
        "cat": lambda x, y: torch.cat([x, x * 2]),
        "norm": lambda x, y: x.norm(),
        "where_indices": lambda x, y: torch.where(y > 4)[0],
        "bincount": lambda x, y: y.flatten().bincount(minlength=12),
        "scatter_add": lambda x, y: torch.zeros(9, device=x.device).scatter_add_(
            0, y.flatten(), x.new_ones(42)
        ),
        "argmax": lambda x, y: y.argmax(1),
        "any": lambda x, y: (y == 8).any(),
        "softmax": lambda x, y: x.view(4, 10).softmax(1),
        "matmul": lambda x, y: x.view(8, 5) @ x.view(5, 8),
        "mean": lambda x, y: x.mean(),
        "histc": lambda x, y: x.histc(5, -5, 5),
        "repeat_interleave": lambda x, y: x[:6].repeat_interleave(y[:, 0]),
        "multinomial_shape": lambda x, y: torch.tensor(x.abs().multinomial(3).shape),
        "searchsorted": lambda x, y: torch.searchsorted(x.sort().values, x),
        "einsum": lambda x, y: torch.einsum("ij,kj->ik", x.view(8, 5), x.view(8, 5)),
        "isfinite": lambda x, y: (x / 0).isfinite(),
        "in_place": lambda x, y: x.clone().add_(1).mul_(2).clamp_(max=4),
        "linspace": lambda x, y: torch.linspace(0, 1, 5, device=x.device),
        "tril": lambda x, y: y.tril(),
        "gather": lambda x, y: y.gather(1, y % 7),
        "kthvalue": lambda x, y: x.kthvalue(7).values,
    }
    for name, case in cases.items():
        expected = case(x, y)
        yield from differs(name, case(on["x"], on["y"]), expected, tolerance=1e-6)


@check
def saving_and_loading():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 10), nn.LayerNorm(10)).cuda()
    expected = {name: value.cpu() for name, value in model.state_dict().items()}
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "step": torch.tensor(5, device="cuda")}, file)
    for place in ("cpu", "cuda:0", "cuda:1"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        for name, value in loaded["model"].items():
            yield from differs(f"{name} on {place}", value, expected[name])
            yield from differs(f"device of {name}", str(value.device), place)
        yield from differs("step", loaded["step"].item(), 5)


@check
def two_devices():
    x = torch.arange(10.0, device="cuda:1")
    yield from differs("computed there", x.mul(3).sum().item(), 135.0)
    yield from differs("copied over", x.to("cuda:0") + 1, torch.arange(1.0, 11.0))
    with torch.cuda.device(1):
        found = [
            torch.cuda.current_device(),
            (x + 1).device.index,
            torch.empty(1, device="cuda").device.index,
        ]
        yield from differs("current", found, [1, 1, 1])
    back = torch.empty(10, device="cuda:0")
    back.copy_(x, non_blocking=True)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    yield from differs("copy_", back, torch.arange(10.0))
    yield from differs("peer access", torch.cuda.can_device_access_peer(0, 1), True)
    halves = (
        nn.parallel.scatter(torch.arange(8.0), [0, 1]) if hasattr(nn.parallel, "scatter") else ()
    )
    yield from differs(
        "scattered",
        [half.tolist() for half in halves],
        [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]],
    )


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor([index, index * index])


@check
def data_loader_workers():
    for context, workers in (("fork", 2), ("spawn", 1)):
        loader = torch.utils.data.DataLoader(
            Squares(),
            batch_size=4,
            num_workers=workers,
            pin_memory=True,
            multiprocessing_context=context,
        )
        rows = []
        for batch in loader:
            yield from differs(f"{context} pinned", batch.is_pinned(), True)
            rows.append((batch.cuda(non_blocking=True) + 0).cpu())
        yield from differs(context, torch.cat(rows), torch.tensor([[i, i * i] for i in range(16)]))


def step_alone():
    keep = torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    figures = training_step()
    torch.cuda.empty_cache()
    taken, taken_by_allocator = (
        free - torch.cuda.mem_get_info()[0],
        torch.cuda.memory_reserved() - reserved,
    )
    values = (torch.arange(4, device="cuda") ** 2).tolist()
    print(
        json.dumps(
            {
                **figures,
                "refused": refused(150 * GIB) or "no error",
                "values": values,
                "taken": taken,
                "taken_by_allocator": taken_by_allocator,
            }
        )
    )
    del keep


if __name__ == "__main__":
    if sys.argv[1:] == ["step"]:
        step_alone()
    else:
        run_checks(only=sys.argv[1:] or None)
