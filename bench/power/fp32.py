"""Products in fp32 without tensor cores, kept up: their time, the GPU's clock, and what it draws. A minute on one GPU.

    python -m bench.power.fp32 > FILE

Why it exists: the H200's energy of such an operation was the H100's, less by the ratio of other precisions, and its
real steps were faster than that allowed. A line of JSON for each product: `nkm`, `ta` (whether the first operand is
transposed), `cool_ms` (after a rest, with the launch), `hot_ms` (one of ten, in the second half of five seconds),
`clock` (MHz) and `watts` (by the energy counter) from the third second on.
"""

import json
import threading
import time

import pynvml
import torch

SIZES = (
    (4096, 4096, 7168),
    (8192, 4096, 2048),
    (4096, 8192, 8192),
    (16384, 4096, 7168),
    (8192, 7168, 4096),
)
SECONDS, SETTLED = 5, 2


def took_ms(run, times: int) -> float:
    """One of `times` calls, by events around all of them."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def sample(device, stop: threading.Event, found: list) -> None:
    while not stop.is_set():
        clock = pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)
        energy_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
        found.append((time.monotonic(), clock, energy_mj))
        time.sleep(0.05)


def measure(device, n: int, k: int, m: int, transposed: int) -> dict:
    a = torch.randn(k, n, device="cuda").t() if transposed else torch.randn(n, k, device="cuda")
    b = torch.randn(k, m, device="cuda")
    took_ms(lambda: torch.mm(a, b), 1)
    cool = []
    for _ in range(8):
        time.sleep(0.05)
        cool.append(took_ms(lambda: torch.mm(a, b), 1))
    stop, samples, hot = threading.Event(), [], []
    sampler = threading.Thread(target=sample, args=(device, stop, samples))
    begin = time.monotonic()
    sampler.start()
    while time.monotonic() < begin + SECONDS:
        hot.append(took_ms(lambda: torch.mm(a, b), 10))
    stop.set()
    sampler.join()
    late = [one for one in samples if one[0] > begin + SETTLED]
    return {
        "nkm": [n, k, m],
        "ta": transposed,
        "cool_ms": sorted(cool)[len(cool) // 2],
        "hot_ms": sorted(hot[len(hot) // 2 :])[len(hot) // 4],
        "clock": sum(clock for _, clock, _ in late) / len(late),
        "watts": (late[-1][2] - late[0][2]) / 1000 / (late[-1][0] - late[0][0]),
    }


def main() -> None:
    torch.set_float32_matmul_precision("highest")
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    for size in SIZES:
        for transposed in (0, 1):
            print(json.dumps(measure(device, *size, transposed)), flush=True)


if __name__ == "__main__":
    main()
