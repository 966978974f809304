"""Prints a measured folder: each part's steps beside the clocks and powers of the GPUs.

    python -m bench.gpus.summary DIR

Why it exists: the first look at a visit, and the table for comparisons. A step's time is the median
of the host's times over the steps, of the slowest rank; clock and power are means over the samples
between a phase's first and last step, power from the energy counter. A sample holds until its GPU's
next one.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from pathlib import Path
from statistics import median

from bench.gpus import visit

SETTLED_NS = 200_000_000  # after a phase's begin: the limiter has found its clock


class Samples:
    """samples.csv, by GPU."""

    def __init__(self, folder: Path) -> None:
        self.rows: dict[int, list[tuple]] = {}
        lines = visit.text(folder, "samples.csv").splitlines()
        base = 0
        for line in lines:
            if line.startswith("# base_ns"):
                base = int(line.split()[2])
            elif line[:1].isdigit():
                cells = [float(cell) if cell else None for cell in line.split(",")]
                if len(cells) == 8:
                    self.rows.setdefault(int(cells[1]), []).append(
                        (base + int(line.split(",")[0]), *cells[2:])
                    )
        for rows in self.rows.values():
            rows.sort(key=lambda row: row[0])

    def between(self, gpu: int, begin: int, end: int) -> dict:
        """Mean MHz, W by the energy counter (between two of its changes), degrees."""
        rows = self.rows.get(gpu, [])
        first = max(0, bisect_left(rows, (begin,)) - 1)
        rows = rows[first : bisect_left(rows, (end,))]
        rows = [(max(begin, row[0]), *row[1:]) for row in rows]  # the first is from before it
        ends = [row[0] for row in rows[1:]] + [end]

        def mean(column):
            pairs = [(row[column], end - row[0]) for row, end in zip(rows, ends, strict=False)]
            pairs = [pair for pair in pairs if pair[0] is not None]
            weight = sum(length for _, length in pairs)
            return sum(value * length for value, length in pairs) / weight if weight else None

        steps = [b for a, b in zip(rows, rows[1:], strict=False) if a[4] != b[4] and b[4]]
        watts = None
        if len(steps) > 1:
            watts = (steps[-1][4] - steps[0][4]) / (steps[-1][0] - steps[0][0]) * 1e6
        return {"mhz": mean(1), "watts": watts or mean(2), "celsius": mean(6)}


def text(value, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def of_gpus(samples: Samples, rows: list[dict]) -> str:
    """Clock / power of each rank's GPU while it ran."""
    cells = []
    for row in rows:
        begin = row["steps"][0][0] if "steps" in row else row["begin"]
        end = row["steps"][-1][0] + row["steps"][-1][2] if "steps" in row else row["end"]
        found = samples.between(row["rank"], min(begin + SETTLED_NS, end), end)
        cells.append("/".join(text(found[key]) for key in ("mhz", "watts", "celsius")))
    return "  ".join(cells)


def phases(rows: list[dict]) -> dict[tuple, list[dict]]:
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        if row["row"] in ("step", "rings", "beside"):
            group = row["rank"] // row["gpus"] if row["phase"] == "alone" else -1
            found.setdefault((row["part"], row["phase"], group), []).append(row)
    return found


def show(folder: Path) -> None:
    rows, samples = visit.results(folder), Samples(folder)
    print("part | phase | ms of each rank | MHz/W/C of each GPU")
    for (part, phase, _), found in phases(rows).items():
        if phase == "warm":
            continue
        if phase == "memory":
            peaks = {f"{row['allocated'] / 1e9:.2f}/{row['reserved'] / 1e9:.2f}" for row in found}
            print(f"{part} | peak GB | {' '.join(sorted(peaks))}")
            continue
        times = []
        for row in found:
            if "steps" in row:
                times.append(text(median(step[2] for step in row["steps"]) / 1e6, 2))
            elif "us" in row:
                times.append(text(row["us"] / 1e3, 3))
        label = f"{phase} {','.join(str(row['rank']) for row in found)}" if part else phase
        print(f"{part} | {label} | {' '.join(times)} | {of_gpus(samples, found)}")
    for row in rows:
        if row["row"] == "failed":
            print(f"FAILED {row['part']}: {row['why']}")
    calls: dict[tuple, list[int]] = {}
    for row in rows:
        if row["row"] == "host_calls":
            calls.setdefault((row["phase"], row["call"]), []).append(row["ns"])
    for (phase, call), values in calls.items():
        print(f"host {phase}: {call} {' '.join(map(str, values))} ns")


if __name__ == "__main__":
    show(Path(sys.argv[1]))
