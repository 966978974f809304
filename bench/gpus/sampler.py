"""Samples clock, power, energy and temperature of every GPU, one process per GPU.

    python -m bench.gpus.sampler OUT.csv [PERIOD_MS]

Why it exists: a step's time means little without the clocks at which it ran, and a thread inside a
rank samples late. Time stamps are `time.time_ns`, as those of the steps. Rule: it reads, and never
sets anything. Columns: ns (since the epoch, less that of the first line), GPU, SM MHz, W (instant),
W (average), energy in mJ, reasons why the clock is held back, degrees C; the last three but energy
are read every fifth time. Ends at SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pynvml

INSTANT_POWER = 186  # NVML_FI_DEV_POWER_INSTANT of nvml.h
SELDOM = 5
ROWS_A_WRITE = 100
ended = False


def end(*_) -> None:
    global ended
    ended = True


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return None


def instant_mw(handle):
    value = pynvml.nvmlDeviceGetFieldValues(handle, [INSTANT_POWER])[0]
    return value.value.uiVal if value.nvmlReturn == 0 else None


def sample(gpu: int, file: int, base: int, period_s: float) -> None:
    """Whole lines, many at a time, so that the processes' lines do not mix."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    rows, count = [], 0
    while not ended:
        begin = time.monotonic()
        row = [
            time.time_ns() - base,
            gpu,
            attempt(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            attempt(instant_mw, handle),
            None,
            attempt(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            None,
            None,
        ]
        if count % SELDOM == 0:
            row[4] = attempt(pynvml.nvmlDeviceGetPowerUsage, handle)
            row[6] = attempt(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
            row[7] = attempt(pynvml.nvmlDeviceGetTemperature, handle, 0)
        for column in (3, 4):
            row[column] = None if row[column] is None else round(row[column] / 1000, 1)
        rows.append(",".join("" if value is None else str(value) for value in row) + "\n")
        count += 1
        if len(rows) >= ROWS_A_WRITE:
            os.write(file, "".join(rows).encode())
            rows.clear()
        time.sleep(max(0.0, begin + period_s - time.monotonic()))
    os.write(file, "".join(rows).encode())


def main() -> None:
    path = sys.argv[1]
    period_s = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 0.01
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    base = time.time_ns()
    os.write(file, f"# base_ns {base}\n# ns,gpu,mhz,watts,watts_average,mj,reasons,c\n".encode())
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    children = []
    for gpu in range(count):
        child = os.fork()
        if child == 0:
            try:
                sample(gpu, file, base, period_s)
            finally:
                os._exit(0)
        children.append(child)
    parent = os.getppid()
    while not ended and os.getppid() == parent:
        time.sleep(0.1)
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
