"""Measures what the simulator has only guesses for, on one real GPU: CUDA graphs, grouped products,
transforms, dense solvers.

    python -m bench.frameworks.micro OUT.jsonl [--only graphs,grouped,transforms,solvers] [--seconds
    120]

Why it exists: `graph_gap` and `graph_launch` of phantora_ns/data/gpus, estimators/grouped.py and
estimators/calls.py say themselves that nobody has measured what they say. One JSON line per case:
its sizes, and in microseconds

    event_us     between two events around calls that were queued behind a sleeping GPU, per call:
    the GPU's time, gaps included
    host_us      what the host takes to issue one call meanwhile; a call that waits for its own
    result takes its time here too
    busy_us      the sum of the kernels, copies and fills of a call, by CUPTI; `span_us` from the
    first one's start to the last
                 one's end; `kernels` how many there are, and `names` the longest

Under the emulator the same script gives the simulated times (there is no CUPTI: event_us alone;
with --host-time none).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

DEVICE = "cuda"
SLEEP_CYCLES = 4_000_000  # about 2 ms, in which the host gets ahead
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}


def recorded(call) -> list[dict]:
    """The events of a Kineto trace of call(), in order of start; CUPTI's, as nothing of the CPU's
    operators is recorded."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return sorted(
        (
            e
            for e in events
            if e.get("ph") == "X" and e.get("cat") in GPU_WORK | {"cuda_runtime", "cuda_driver"}
        ),
        key=lambda e: e["ts"],
    )


def gpu_work(events: list[dict]) -> list[dict]:
    return [e for e in events if e["cat"] in GPU_WORK]


def event_times(call, repeats: int) -> tuple[float, float]:
    """(us of the GPU per call, us of the host per call) of calls queued behind a sleep."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    before = time.perf_counter()
    for _ in range(repeats):
        call()
    host = time.perf_counter() - before
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats * 1e3, host / repeats * 1e6


def measure(call) -> dict:
    """The times of one call; see the module's docstring."""
    call()
    torch.cuda.synchronize()
    before = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = time.perf_counter() - before
    repeats = max(2, min(30, int(0.03 / max(once, 1e-6))))
    found = {"repeats": repeats}
    times = [event_times(call, repeats) for _ in range(3 if once < 0.05 else 1)]
    found["event_us"], found["host_us"] = (
        round(statistics.median(column), 3) for column in zip(*times, strict=True)
    )
    work = gpu_work(recorded(call))
    if work:
        longest = Counter()
        for event in work:
            longest[event["name"]] += event["dur"]
        found |= {
            "busy_us": round(sum(e["dur"] for e in work), 3),
            "kernels": len(work),
            "span_us": round(max(e["ts"] + e["dur"] for e in work) - work[0]["ts"], 3),
            "names": [[name[:120], round(us, 3)] for name, us in longest.most_common(4)],
        }
    return found


# ---- CUDA graphs ----


def captured(body, count: int, branches: int = 1) -> tuple[torch.cuda.CUDAGraph, float]:
    """(a graph of `count` kernels, evenly in `branches` that run side by side, ms that capture and
    instantiation took)."""
    graph = torch.cuda.CUDAGraph()
    body(0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        streams = [main, *(torch.cuda.Stream() for _ in range(branches - 1))]
        for side in streams[1:]:
            side.wait_stream(main)
        for place, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                for _ in range(count // branches):
                    body(place)
        for side in streams[1:]:
            main.wait_stream(side)
    return graph, (time.perf_counter() - begin) * 1e3


def quantiles(values: list[float]) -> dict:
    values = sorted(values)
    return (
        {
            "p10": round(values[len(values) // 10], 3),
            "median": round(statistics.median(values), 3),
            "p90": round(values[len(values) * 9 // 10], 3),
            "count": len(values),
        }
        if values
        else {}
    )


def gaps(work: list[dict]) -> list[float]:
    """us between one kernel's end and the next one's start on the same stream."""
    last: dict[int, float] = {}
    found = []
    for event in work:
        stream = event["args"].get("stream", 0)
        if stream in last:
            found.append(event["ts"] - last[stream])
        last[stream] = event["ts"] + event["dur"]
    return found


def replayed(graph, count: int) -> dict:
    """What one replay costs the host, and how its kernels lie on the GPU."""
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    idle = []
    for _ in range(30):
        before = time.perf_counter()
        graph.replay()
        idle.append((time.perf_counter() - before) * 1e6)
        torch.cuda.synchronize()
    queued = [event_times(graph.replay, 20) for _ in range(3)]
    found = {
        "host_idle_us": quantiles(idle),
        "event_us": round(statistics.median(t[0] for t in queued), 3),
        "host_queued_us": round(statistics.median(t[1] for t in queued), 3),
    }
    single = [event_times(graph.replay, 1)[0] for _ in range(10)]
    found["event_single_us"] = quantiles(single)
    events = recorded(lambda: [graph.replay() for _ in range(4)])
    work = gpu_work(events)
    calls = [e for e in events if "GraphLaunch" in e["name"]]
    if not work or not calls:
        return found
    by_call: dict[int, list[dict]] = {}
    for event in work:
        by_call.setdefault(event["args"].get("correlation", 0), []).append(event)
    rounds = [sorted(run, key=lambda e: e["ts"]) for run in by_call.values() if len(run) == count]
    between = [
        b[0]["ts"] - max(e["ts"] + e["dur"] for e in a)
        for a, b in zip(rounds, rounds[1:], strict=False)
    ]
    found |= {
        "kernel_us": quantiles([e["dur"] for e in work]),
        "gap_us": quantiles([g for run in rounds for g in gaps(run)]),
        "between_us": quantiles(between),
        "recorded_call_us": quantiles([e["dur"] for e in calls]),
        "rounds": len(rounds),
        "streams": len({e["args"].get("stream") for e in work}),
    }
    if rounds:
        first = next(
            (
                c
                for c in calls
                if c["args"].get("correlation") == rounds[0][0]["args"].get("correlation")
            ),
            None,
        )
        if first is not None:
            found["latency_us"] = round(rounds[0][0]["ts"] - first["ts"] - first["dur"], 3)
    return found


def eager(body, count: int) -> dict:
    """The same kernels launched one by one behind a sleep."""

    def all_of_them():
        for _ in range(count):
            body(0)

    all_of_them()
    times = [event_times(all_of_them, 1) for _ in range(3)]
    found = {
        what: round(statistics.median(t[place] for t in times), 3)
        for place, what in enumerate(("event_us", "host_us"))
    }
    work = gpu_work(recorded(lambda: (torch.cuda._sleep(SLEEP_CYCLES), all_of_them())))[1:]
    if len(work) > 1:
        found |= {"kernel_us": quantiles([e["dur"] for e in work]), "gap_us": quantiles(gaps(work))}
    return found


def graphed(name: str, body, count: int, branches: int) -> dict:
    graph, made = captured(body, count, branches)
    told = {
        "case": "graph",
        "body": name,
        "nodes": count,
        "branches": branches,
        "capture_ms": round(made, 3),
    }
    return told | replayed(graph, count)


def graphs():
    tiny = [torch.zeros(1, device=DEVICE) for _ in range(4)]
    wide = [torch.zeros(1 << 22, device=DEVICE) for _ in range(4)]
    left, right = (torch.randn(1024, 1024, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    out = [torch.empty_like(left) for _ in range(4)]
    bodies = {
        "tiny": lambda place: tiny[place].add_(1),
        "wide": lambda place: wide[place].mul_(1.0001),
        "product": lambda place: torch.mm(left, right, out=out[place]),
    }
    for name, body in bodies.items():
        for count in (1, 10, 100, 1000):
            yield graphed(name, body, count, 1)
            if count <= 500:  # more would wait for the queue
                yield {"case": "eager", "body": name, "launches": count} | eager(body, count)
        for branches in (2, 4):
            yield graphed(name, body, 400, branches)


# ---- grouped products ----

# experts, tokens of all experts, depth, columns: of DeepSeek 16B, Qwen3 30B-A3B, Mixtral, Llama 4,
# DeepSeek V3; and small ones
GROUPED = [
    (64, 49152, 2048, 1408),
    (64, 49152, 1408, 2048),
    (64, 24576, 2048, 1408),
    (64, 3072, 2048, 1408),
    (32, 49152, 2048, 1408),
    (128, 65536, 2048, 768),
    (128, 65536, 768, 2048),
    (128, 16384, 2048, 768),
    (64, 32768, 2048, 768),
    (16, 16384, 2048, 768),
    (8, 16384, 4096, 14336),
    (8, 16384, 14336, 4096),
    (8, 4096, 4096, 14336),
    (16, 8192, 5120, 8192),
    (32, 32768, 7168, 2048),
    (8, 32768, 7168, 2048),
    (2, 16384, 4096, 4096),
    (4, 2048, 512, 512),
    (8, 4096, 1024, 1024),
    (256, 8192, 1024, 512),
]


def ends(experts: int, rows: int, skewed: bool) -> torch.Tensor:
    """Where each expert's rows end: equal parts in units of 8, or the larger ones first, as 1 /
    (place + 4)."""
    weights = torch.tensor(
        [1 / (place + 4) if skewed else 1.0 for place in range(experts)], dtype=torch.float64
    )
    bounds = (weights.cumsum(0) / weights.sum() * rows / 8).round().to(torch.int32) * 8
    bounds[-1] = rows
    return bounds.to(DEVICE)


def normal(*shape, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def grouped():
    for experts, rows, depth, columns in GROUPED:
        x, w, dy = normal(rows, depth), normal(experts, depth, columns), normal(rows, columns)
        transposed = normal(experts, columns, depth).transpose(-2, -1)
        base = {
            "case": "grouped",
            "experts": experts,
            "rows": rows,
            "depth": depth,
            "columns": columns,
        }
        for skewed in (False, True):
            offs = ends(experts, rows, skewed)
            told = base | {
                "skewed": skewed,
                "largest": int(torch.diff(offs, prepend=offs.new_zeros(1)).max()),
            }
            yield (
                told | {"direction": "forward"},
                lambda offs=offs, x=x, w=w: torch._grouped_mm(x, w, offs),
            )
            if skewed:
                continue
            yield (
                told | {"direction": "forward, weights transposed"},
                lambda offs=offs, x=x, w=transposed: torch._grouped_mm(x, w, offs),
            )
            yield (
                told | {"direction": "input gradient"},
                lambda offs=offs, dy=dy, w=w: torch._grouped_mm(dy, w.transpose(-2, -1), offs),
            )
            yield (
                told | {"direction": "weight gradient"},
                lambda offs=offs, x=x, dy=dy: torch._grouped_mm(x.t(), dy, offs),
            )
        if depth % 16 == 0 and columns % 16 == 0:
            eight, other = (
                x.to(torch.float8_e4m3fn),
                w.transpose(-2, -1).contiguous().to(torch.float8_e4m3fn).transpose(-2, -1),
            )
            scale, scales = (
                torch.ones(rows, device=DEVICE),
                torch.ones(experts, columns, device=DEVICE),
            )
            offs = ends(experts, rows, False)
            yield (
                base | {"skewed": False, "direction": "forward, fp8 by row"},
                lambda a=eight, b=other, s=scale, t=scales, offs=offs: torch._scaled_grouped_mm(
                    a, b, s, t, offs, out_dtype=torch.bfloat16
                ),
            )


# ---- transforms ----

# 2^24 points in all of each
LONG = [
    64,
    256,
    1024,
    4096,
    16384,
    1 << 16,
    1 << 18,
    1 << 20,
    1 << 22,
]
LINES = [
    *(((1 << 24) // n, n) for n in LONG),
    (1, 4096),
    (1, 1 << 16),
    (1, 1 << 20),
    (1, 1 << 24),
    (64, 4096),
    (4096, 1000),
    (4096, 1536),
    (4096, 4095),
    (1024, 10007),
]
PLANES = [
    (1, 128),
    (256, 128),
    (1, 512),
    (64, 512),
    (1, 1024),
    (16, 1024),
    (1, 2048),
    (1, 4096),
    (64, 224),
    (16, 720),
]


def transforms():
    def told(sizes, batch, kind, dtype):
        return {
            "case": "fft",
            "sizes": sizes,
            "batch": batch,
            "kind": kind,
            "dtype": str(dtype).removeprefix("torch."),
        }

    single, double, real = torch.complex64, torch.complex128, torch.float32
    for batch, n in LINES:
        for dtype in (single, double) if n in (1024, 1 << 20) else (single,):
            x = torch.randn(batch, n, device=DEVICE, dtype=dtype)
            yield told([n], batch, "complex", dtype), lambda x=x: torch.fft.fft(x)
        x = torch.randn(batch, n, device=DEVICE)
        yield told([n], batch, "to complex", real), lambda x=x: torch.fft.rfft(x)
        half = torch.fft.rfft(x)
        yield told([n], batch, "to real", real), lambda x=half, n=n: torch.fft.irfft(x, n)
    for batch, n in PLANES:
        x = torch.randn(batch, n, n, device=DEVICE, dtype=single)
        yield told([n, n], batch, "complex", single), lambda x=x: torch.fft.fft2(x)
        x = torch.randn(batch, n, n, device=DEVICE)
        yield told([n, n], batch, "to complex", real), lambda x=x: torch.fft.rfft2(x)
    for n in (64, 128, 256):
        x = torch.randn(n, n, n, device=DEVICE, dtype=single)
        yield told([n, n, n], 1, "complex", single), lambda x=x: torch.fft.fftn(x)


# ---- dense solvers ----

# batch, size
MATRICES = [
    (1, 64),
    (1, 256),
    (1, 1024),
    (1, 2048),
    (1, 4096),
    (1, 8192),
    (64, 32),
    (64, 64),
    (64, 256),
    (512, 32),
    (512, 64),
    (16, 1024),
    (4096, 16),
]


def solvers():
    linalg = torch.linalg
    for batch, n in MATRICES:
        for dtype in (torch.float32, torch.float64) if n in (256, 1024) else (torch.float32,):
            a = torch.randn(batch, n, n, device=DEVICE, dtype=dtype)
            positive = a @ a.mT / n + torch.eye(n, device=DEVICE, dtype=dtype)
            several = torch.randn(batch, n, n, device=DEVICE, dtype=dtype)
            one = several[..., :1].contiguous()
            factor = linalg.cholesky(positive)
            lu, pivots = linalg.lu_factor(a)
            told = {"batch": batch, "n": n, "dtype": str(dtype).removeprefix("torch.")}
            calls = {
                "cholesky_ex": lambda p=positive: linalg.cholesky_ex(p),
                "lu_factor_ex": lambda a=a: linalg.lu_factor_ex(a),
                "solve_ex, 1": lambda a=a, b=one: linalg.solve_ex(a, b),
                "solve_ex, n": lambda a=a, b=several: linalg.solve_ex(a, b),
                "inv_ex": lambda a=a: linalg.inv_ex(a),
                "lu_solve": lambda lu=lu, p=pivots, b=several: linalg.lu_solve(lu, p, b),
                "solve_triangular, 1": lambda f=factor, b=one: linalg.solve_triangular(
                    f, b, upper=False
                ),
                "solve_triangular, n": lambda f=factor, b=several: linalg.solve_triangular(
                    f, b, upper=False
                ),
                "cholesky_solve": lambda f=factor, b=several: torch.cholesky_solve(b, f),
                "cholesky_inverse": lambda f=factor: torch.cholesky_inverse(f),
                "qr": lambda a=a: linalg.qr(a),
                "lstsq": lambda a=a, b=one: linalg.lstsq(a, b),
            }
            if batch * n <= 1 << 15 and n <= 2048:
                calls |= {
                    "eigh": lambda p=positive: linalg.eigh(p),
                    "eigvalsh": lambda p=positive: linalg.eigvalsh(p),
                }
            if batch * n <= 1 << 14 and n <= 1024:
                calls |= {
                    "svd": lambda a=a: linalg.svd(a, full_matrices=False),
                    "svdvals": lambda a=a: linalg.svdvals(a),
                }
            if batch == 1 and n <= 1024:
                calls |= {
                    "eig": lambda a=a: linalg.eig(a),
                    "ldl_factor_ex": lambda p=positive: linalg.ldl_factor_ex(p),
                }
            for name, call in calls.items():
                yield {"case": name} | told, call
    for rows, columns in ((4096, 64), (65536, 64), (4096, 512), (16384, 1024)):
        a = torch.randn(rows, columns, device=DEVICE)
        yield (
            {"case": "qr", "batch": 1, "n": columns, "rows": rows, "dtype": "float32"},
            lambda a=a: torch.linalg.qr(a),
        )
        if columns <= 512:
            yield (
                {"case": "svd", "batch": 1, "n": columns, "rows": rows, "dtype": "float32"},
                lambda a=a: torch.linalg.svd(a, full_matrices=False),
            )


SECTIONS = {"graphs": graphs, "grouped": grouped, "transforms": transforms, "solvers": solvers}


def entries(section):
    """Measures the cases of a section one by one and yields a line for each; a line of a case that
    fails says why."""
    for made in SECTIONS[section]():
        if isinstance(made, dict):
            yield made
            continue
        told, call = made
        try:
            yield told | measure(call)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            yield told | {"error": str(error).splitlines()[0][:300]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument(
        "--seconds",
        type=float,
        default=1e9,
        help="of all sections, each getting an equal part of what is left",
    )
    options = parser.parse_args()
    torch.manual_seed(0)
    chosen, begin = options.only.split(","), time.monotonic()
    with options.out.open("a") as stream:
        for place, section in enumerate(chosen):
            start = time.monotonic()
            limit = (options.seconds - (start - begin)) / (len(chosen) - place)
            count = 0
            try:
                for line in entries(section):
                    stream.write(
                        json.dumps({"section": section, "gpu": torch.cuda.get_device_name()} | line)
                        + "\n"
                    )
                    stream.flush()
                    count += 1
                    if time.monotonic() - start > limit:
                        print(f"{section}: stopped, no time", flush=True)
                        break
            except RuntimeError as error:  # a failed section must not lose those after it
                print(f"{section}: {error}", flush=True)
            print(f"{section}: {count} lines in {time.monotonic() - start:.1f} s", flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
