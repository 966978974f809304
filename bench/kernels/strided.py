"""What elementwise kernels take when one operand is transposed, on a real GPU; and the rate that
describes it.

    python -m bench.kernels.strided > bench/kernels/strided.jsonl     # on the GPU
    python -m bench.kernels.strided --batched 60 > bench/kernels/batched.jsonl     # on the GPU, and simulated
    python -m bench.kernels.strided --errors bench/kernels/batched.jsonl.xz SIMULATED.jsonl
    python -m bench.kernels.strided --fit bench/kernels/strided.jsonl
    python -m bench.kernels.strided --shares bench/kernels/batched.jsonl.xz

Why it exists: neighbouring threads that read 32 bytes or more apart fetch a whole sector of the L2
cache each. The law: each operand's bytes once and 32 for each such element, at a rate of the cache
(`cache.sectors` in the GPU's file: bytes per multiprocessor and cycle). Batches of small transposes fetch a share of
that (FETCHED in phantora_ns/kernels/estimators/memory.py).
"""

import argparse
import json
import lzma
import math
import random
import statistics
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from phantora_ns.kernels import rates
from phantora_ns.kernels.estimators.memory import FAR, LINE, SECTOR

SHAPES = (
    (2048, 2048),
    (4096, 4096),
    (8192, 4096),
    (4096, 14336),
    (8192, 8192),
    (16384, 16384),
    (1024, 65536),
    (65536, 1024),
    (262144, 64),
    (64, 262144),
    (1 << 20, 16),
    (131072, 256),
    (65536, 512),
)
BATCHED_ROWS = (
    8, 16, 24, 32, 48, 49, 64, 80, 96, 112, 128, 160, 192, 196, 224, 256, 320, 384, 400, 512,
    576, 640, 768, 784, 1024, 1536, 2048, 3136, 4096, 8192,
)  # fmt: skip
BATCHED_COLUMNS = (
    3, 8, 16, 24, 32, 48, 64, 80, 96, 128, 144, 192, 196, 320, 384, 512, 768, 1024, 2048, 4096,
)  # fmt: skip
BATCHED_NUMBERS = (1 << 22, 1 << 24, 1 << 26)
SIZES = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8}
OPERANDS = {"copy": 2, "add": 3}
# shorter rows find some sectors in the L1 cache, so the law is an upper bound for them
LEAST_ROWS, LEAST_COLUMNS = (
    512,
    256,
)
MULTIPROCESSORS, CYCLES_PER_NS = 132, 1.98
# numbers from which the start of a kernel does not count; batches are rounded down
LARGE = 0.9 * (1 << 24)


def median_us(work, count=12) -> float:
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            work()
        torch.cuda.synchronize()
    kernels = [event for event in profiler.events() if "elementwise" in event.name]
    return statistics.median(
        event.device_time_total for event in kernels if event.device_time_total
    )


def measure_batched(seconds: float) -> None:
    """Batches of small transposes, as a change between layouts of images makes them: `rows` are the neighbours
    within the result, each `columns` numbers from the next in the operand. Drawn at random."""
    import torch

    cases = [
        (op, name, batch_numbers // rows // columns, rows, columns)
        for batch_numbers in BATCHED_NUMBERS
        for rows in BATCHED_ROWS
        for columns in BATCHED_COLUMNS
        for name in ("bf16", "f32")
        for op in ("copy", "add")
        if rows * columns <= batch_numbers
    ]
    random.Random(1).shuffle(cases)
    begin = time.monotonic()
    for op, name, batch, rows, columns in cases:
        if time.monotonic() - begin > seconds:
            break
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[name]
        across = torch.zeros(batch, rows, columns, device="cuda", dtype=dtype).transpose(1, 2)
        along, out = (
            torch.zeros(batch, columns, rows, device="cuda", dtype=dtype) for _ in range(2)
        )
        work = {
            "copy": partial(out.copy_, across),
            "add": partial(torch.add, along, across, out=out),
        }[op]
        case = {"op": op, "type": name, "batch": batch, "rows": rows, "columns": columns}
        print(json.dumps(case | {"us": median_us(work)}), flush=True)


def read(path: Path) -> list[dict]:
    """The cases of a file of batches."""
    text = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


def shares(path: Path) -> None:
    """Of a sector, what an element fetches in batches from 16 million numbers on: the median by rows for strides of
    whole lines, for others and for far ones, and by stride for long rows."""
    rate = 1 / rates.load("h200").scattered_ns(1)  # bytes per ns
    by_rows, by_stride = defaultdict(list), defaultdict(list)
    for case in read(path):
        numbers = case["batch"] * case["rows"] * case["columns"]
        size, rows = SIZES[case["type"]], case["rows"]
        if numbers < LARGE:
            continue
        share = (case["us"] * 1e3 * rate / numbers - OPERANDS[case["op"]] * size) / SECTOR
        stride = case["columns"] * size
        kind = "far" if stride >= FAR else "others" if stride % LINE else "lines"
        if stride >= LINE:
            by_rows[size, rows, kind].append(share)
        if SECTOR <= stride <= LINE and rows >= LEAST_ROWS:
            by_stride[size, stride].append(share)
    for (size, rows, kind), found in sorted(by_rows.items()):
        print(f"{size} bytes, {rows:5d} rows, {kind:6}: {statistics.median(found):.3f}")
    for (size, stride), found in sorted(by_stride.items()):
        print(f"{size} bytes, stride of {stride:3d}: {statistics.median(found):.3f}")


def errors(real: Path, simulated: Path) -> None:
    """Of the batches that both files have: all, and by rows and by columns from 16 million numbers on."""
    keys = "op", "type", "batch", "rows", "columns"
    found, told = (
        {tuple(case[key] for key in keys): case["us"] for case in read(path)}
        for path in (real, simulated)
    )
    logs = {case: math.log(told[case] / us) for case, us in found.items() if case in told}

    def show(label: str, chosen: list[float]) -> None:
        sizes = [abs(error) for error in chosen]
        print(
            f"{label:14} {len(chosen):5d}  median {statistics.median(sizes):.1%}, mean "
            f"{statistics.mean(sizes):.1%}, signed {statistics.mean(chosen):+.1%}"
        )

    show("all", list(logs.values()))
    large = {case: e for case, e in logs.items() if math.prod(case[2:]) >= 1 << 24}
    for place, label, sizes in ((3, "rows", BATCHED_ROWS), (4, "columns", BATCHED_COLUMNS)):
        for size in sizes:
            show(f"{label} {size}", [e for case, e in large.items() if case[place] == size])


def measure() -> None:
    import torch

    types = {"u8": torch.uint8, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

    for name, dtype in types.items():
        for rows, columns in SHAPES:
            across = torch.zeros(rows, columns, device="cuda").to(dtype).t()
            along, out = (torch.zeros(columns, rows, device="cuda").to(dtype) for _ in range(2))
            cases = {"copy": partial(out.copy_, across)}
            if name in ("bf16", "f32"):
                cases["add"] = partial(torch.add, along, across, out=out)
            if name == "bf16":
                cases["f8"] = partial(
                    torch.zeros(columns, rows, device="cuda").to(torch.float8_e4m3fn).copy_, across
                )
            for op, work in cases.items():
                print(
                    json.dumps(
                        {
                            "op": op,
                            "type": name,
                            "rows": rows,
                            "columns": columns,
                            "us": median_us(work),
                        }
                    ),
                    flush=True,
                )


def fit(path: str) -> None:
    """Bytes per multiprocessor and cycle: the median over the shapes; then each one's error."""
    found = []
    for line in open(path):
        case = json.loads(line)
        size = SIZES[case["type"]]
        moved = (size + 1 if case["op"] == "f8" else OPERANDS[case["op"]] * size) + SECTOR
        found.append((case, moved * case["rows"] * case["columns"] / (case["us"] * 1e3)))
    plain = [
        rate
        for case, rate in found
        if case["rows"] >= LEAST_ROWS and case["columns"] >= LEAST_COLUMNS
    ]
    rate = statistics.median(plain)
    for case, own in found:
        print(
            f"{case['op']:5s}{case['type']:5s}{case['rows']:8d} x {case['columns']:6d} {case['us']:9.1f} us "
            f"{own / rate - 1:+7.1%}"
        )
    errors = sorted(abs(own / rate - 1) for own in plain)
    print(
        f"{rate / MULTIPROCESSORS / CYCLES_PER_NS:.2f} bytes per multiprocessor and cycle; of "
        f"{len(plain)} shapes, median "
        f"error {statistics.median(errors):.1%}, 90 % below {errors[int(0.9 * len(errors))]:.1%}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", metavar="FILE")
    parser.add_argument("--batched", type=float, metavar="SECONDS", help="batches of small ones")
    parser.add_argument("--errors", type=Path, nargs=2, metavar=("REAL", "SIMULATED"))
    parser.add_argument("--shares", type=Path, metavar="FILE", help="of batches")
    options = parser.parse_args()
    if options.shares:
        shares(options.shares)
    elif options.errors:
        errors(*options.errors)
    elif options.fit:
        fit(options.fit)
    elif options.batched:
        measure_batched(options.batched)
    else:
        measure()
