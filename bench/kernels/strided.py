"""What elementwise kernels take when one operand is transposed, on a real GPU; and the rate that
describes it.

    python -m bench.kernels.strided > bench/kernels/strided.jsonl     # on the GPU
    python -m bench.kernels.strided --fit bench/kernels/strided.jsonl

Why it exists: neighbouring threads that read 32 bytes or more apart fetch a whole sector of the L2
cache each. The law: each operand's bytes once and 32 for each such element, at a rate of the cache
(`cache.sectors` in the GPU's file: bytes per multiprocessor and cycle).
"""

import argparse
import json
import statistics
from functools import partial

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
SIZES = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8}
# shorter rows find some sectors in the L1 cache, so the law is an upper bound for them
LEAST_ROWS, LEAST_COLUMNS = (
    512,
    256,
)
MULTIPROCESSORS, CYCLES_PER_NS = 132, 1.98


def measure() -> None:
    import torch

    types = {"u8": torch.uint8, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

    def median_us(work, count=12):
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
        moved = {"copy": 2 * size, "add": 3 * size, "f8": size + 1}[case["op"]] + 32
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
    options = parser.parse_args()
    fit(options.fit) if options.fit else measure()
