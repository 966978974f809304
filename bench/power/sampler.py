"""Samples clock, power and energy of one GPU in a thread of its own.

Why it exists: a kernel's time means little without the clock at which it ran. Energy is NVML's
counter, which the driver advances every 20 to 100 ms; power is the instantaneous reading where the
driver has one. Rule: it reads, and never sets anything.
"""

from __future__ import annotations

import threading
import time

import pynvml

INSTANT_POWER = 186  # NVML_FI_DEV_POWER_INSTANT of nvml.h


class Sampler:
    """`rows`: [seconds since start, SM MHz, W (instant), W (average), mJ, throttle reasons, C]."""

    def __init__(self, index: int = 0, period_s: float = 0.01) -> None:
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.rows: list[list] = []
        self.zero = time.perf_counter()
        self._period_s = period_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.perf_counter() - self.zero

    def _instant(self) -> float | None:
        try:
            value = pynvml.nvmlDeviceGetFieldValues(self.handle, [INSTANT_POWER])[0]
            return value.value.uiVal / 1000 if value.nvmlReturn == 0 else None
        except pynvml.NVMLError:
            return None

    def _try(self, call, *arguments):
        try:
            return call(self.handle, *arguments)
        except pynvml.NVMLError:
            return None

    def _run(self) -> None:
        count = 0
        temperature = None
        while not self._end.is_set():
            if count % 50 == 0:
                temperature = self._try(pynvml.nvmlDeviceGetTemperature, 0)
            count += 1
            average = self._try(pynvml.nvmlDeviceGetPowerUsage)
            self.rows.append(
                [
                    round(self.now(), 4),
                    self._try(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
                    self._instant(),
                    average and average / 1000,
                    self._try(pynvml.nvmlDeviceGetTotalEnergyConsumption),
                    self._try(pynvml.nvmlDeviceGetCurrentClocksEventReasons),
                    temperature,
                ]
            )
            self._end.wait(self._period_s)

    def between(self, begin: float, end: float) -> dict:
        """Means over [begin, end] (seconds of `now`): SM MHz, W, and W by the energy counter."""
        rows = [row for row in self.rows if begin <= row[0] <= end]

        def mean(column):
            values = [row[column] for row in rows if row[column] is not None]
            return round(sum(values) / len(values), 1) if values else None

        steps = [rows[0]] if rows else []
        for row in rows[1:]:
            if row[4] != steps[-1][4]:
                steps.append(row)
        by_energy = None
        if len(steps) > 2:  # between two changes of the counter
            first, last = steps[1], steps[-1]
            by_energy = round((last[4] - first[4]) / 1000 / (last[0] - first[0]), 1)
        reasons = 0
        for row in rows:
            reasons |= row[5] or 0
        return {
            "mhz": mean(1),
            "watts_instant": mean(2),
            "watts_average": mean(3),
            "watts_energy": by_energy,
            "reasons": reasons,
            "celsius": mean(6),
            "samples": len(rows),
        }

    def close(self) -> None:
        self._end.set()
        self._thread.join()
