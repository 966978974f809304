"""What the law of bench/power says of steps on several GPUs, before they were measured.

    python -m bench.gpus.predict SIMULATED_DIR

Why it exists: README.md holds its table, so that the measurement judges the law and not the other
way round. SIMULATED_DIR is what measure.py wrote under `phantora-ns --host-time model`. The law: at
the limit a step's energy beyond idle is energy(1 GPU) (f / f1)^0.76 plus `NJ` per byte that the
GPU sends, and equals (limit - idle) time(f); `SHARE` of the time follows the clock.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

IDLE, LIMIT, EXPONENT, HIGHEST = 131.0, 688.0, 0.76, 1980.0  # W, W, -, MHz
NJ = (0.6, 2.0)  # per byte: of the links by their kind; and if it alone explains one_two.jsonl
CHIPS = {2: 1.011, 4: 1.021}  # the slowest of so many, sigma 2 %, over the mean
GB = 1e9
STEPS = {  # clock on one GPU (bench/power; None: expected), share that follows it, GB sent on 2, 4
    "1b-fsdp-4k": (1829, 0.30, 6.0, 9.0),
    "8b12-fsdp-8k-ac": (1619, 0.36, 14.7, 22.0),
    "8b12-fsdp-4k": (1764, 0.30, 14.7, 22.0),
    "1b-ddp-4k": (1780, 0.30, 3.0, 4.5),
    "8b-fsdp-4k": (1740, 0.32, 32.1, 48.2),
    "8b12-fsdp_tp2-4k": (1700, 0.32, 9.4, 16.7),
    "13b10-tp-4k": (1750, 0.32, 13.4, 20.1),
}


def clock(f1: float, share: float, seconds: float, more: float, joules: float) -> float:
    """The clock at which a step that takes `more` times as long at f1 stays at the limit."""
    energy = (LIMIT - IDLE) * seconds
    length = 1 - share + share * HIGHEST / f1

    def excess(f: float) -> float:
        time = seconds * more * (1 - share + share * HIGHEST / f) / length
        return energy * (f / f1) ** EXPONENT + joules - (LIMIT - IDLE) * time

    low, high = 600.0, HIGHEST
    if excess(high) <= 0:
        return high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) > 0 else (middle, high)
    return low


def simulated(folder: Path) -> dict[tuple[str, int], float]:
    """Seconds of each step: the slowest rank's median."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in (folder / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["row"] == "step" and row["phase"] == "all" and "again" not in row["part"]:
            name = row["part"].split("@")[0]
            found[name, row["gpus"]].append(median(step[2] for step in row["steps"]) / 1e9)
    return {key: max(values) for key, values in found.items()}


def main() -> None:
    times = simulated(Path(sys.argv[1]))
    print("| step | simulated ms: 1, 2, 4 GPUs | clock on 1 | on 2 | on 4 | time 2 / 1 | 4 / 1 |")
    print("|---|---|---|---|---|---|---|")
    for name, (f1, share, *sent) in STEPS.items():
        one = times.get((name, 1))
        ms = [f"{times[name, n] * 1e3:.1f}" if (name, n) in times else "-" for n in (1, 2, 4)]
        clocks, ratios = [], []
        for gpus, gigabytes in zip((2, 4), sent, strict=True):
            here = times.get((name, gpus))
            if here is None:
                clocks.append("-")
                ratios.append("-")
                continue
            alone = one or here
            more = here / alone
            found = [clock(f1, share, alone, more, nj * gigabytes) for nj in NJ]
            longer = [
                more * CHIPS[gpus]
                * (1 - share + share * HIGHEST / f) / (1 - share + share * HIGHEST / f1)
                for f in found
            ]  # fmt: skip
            clocks.append(" to ".join(f"{f:.0f}" for f in found))
            ratios.append(f"{more:.3f}: " + " to ".join(f"{r:.3f}" for r in longer))
        if one is None:
            ratios = ["-", "-"]
        print(f"| {name} | {', '.join(ms)} | {f1} | {' | '.join(clocks)} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
