"""Energy per byte of a ring, and what it says of clocks and step times on several GPUs.

    python -m bench.gpus.law DIR

Why it exists: README.md holds its tables. Nothing is fitted to steps. The law: at the power limit a
step's energy beyond idle is that on one GPU, plus limit - idle for the time that contention adds
(a kernel beside a ring draws what it draws alone), less `SHARDED_W` for the work that more GPUs
share, all times (clock ratio)^0.76, plus NJ per byte that the GPU sends; and it equals (limit -
idle) times the step, of which a share follows the clock
(predict.py). Contention, sharded work and pauses are
those of the traces (decompose.py).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from bench.gpus import visit
from bench.gpus.decompose import EQUAL, growths, medians, real_steps
from bench.gpus.predict import EXPONENT, HIGHEST, STEPS
from bench.gpus.probes import BESIDE, COLLECTIVES
from bench.gpus.steps import PAUSES
from bench.gpus.summary import SETTLED_NS, Samples

SHARDED_W = 477.0  # optimizer and copies beyond idle (bench/power: 608 W)
RING_W = 200.0  # a collective with nothing beside it, beyond idle


def sent(name: str, gpus: int) -> float:
    """Bytes that a GPU sends in a ring over `gpus` GPUs."""
    kind, _, size = (COLLECTIVES | BESIDE)[name]
    return size * (gpus - 1) / gpus * (2 if kind == "all_reduce" else 1)


def watts(samples: Samples, row: dict) -> tuple[float, float]:
    """MHz and W of a row of a probe or a phase of steps."""
    begin = row["steps"][0][0] if "steps" in row else row["begin"]
    end = row["steps"][-1][0] + row["steps"][-1][2] if "steps" in row else row["end"]
    found = samples.between(row["rank"], min(begin + SETTLED_NS, end), end)
    return found["mhz"], found["watts"]


def rings(rows: list[dict], samples: Samples, idle: float) -> dict[int, float]:
    """Joules per byte sent by rings of a layer of 8B, by number of GPUs."""
    found = defaultdict(list)
    for row in rows:
        if row["row"] == "rings" and row["phase"].endswith(("416MB", "832MB")):
            joules = (watts(samples, row)[1] - idle) * row["us"] / 1e6
            found[row["gpus"]].append(joules / sent(row["phase"], row["gpus"]))
    return {gpus: mean(values) for gpus, values in found.items()}


def beside(rows: list[dict], samples: Samples, idle: float) -> dict[tuple[str, int], float]:
    """Joules per byte sent that a ring adds to a kernel beside it, at the kernel's clock."""
    found = defaultdict(list)
    alone = {}
    for row in rows:
        if row["row"] != "beside":
            continue
        kernel, _, ring = row["phase"].partition(" beside ")
        mhz, power = watts(samples, row)
        joules = (power - idle) * row["us"] / 1e6
        if not ring:
            alone[row["part"], row["rank"], kernel.removesuffix(" alone")] = mhz, joules
            continue
        before, own = alone[row["part"], row["rank"], kernel]
        more = joules - own * (mhz / before) ** EXPONENT
        bytes_sent = sent(ring, row["gpus"]) * row["us"] / row["ring_us"]
        found[kernel, row["gpus"]].append(more / bytes_sent)
    return {key: mean(values) for key, values in found.items()}


def phase(rows: list[dict], samples: Samples, part: str) -> tuple[float, float]:
    found = [
        watts(samples, row)
        for row in rows
        if row["row"] == "step" and row["part"] == part and row["phase"] == "all"
    ]
    return mean(mhz for mhz, _ in found), mean(power for _, power in found)


def solved(lines: dict, seconds: float, f1: float, power: float, joules: float, share: float):
    """Clock and length of the step at which its energy is what the limit allows."""
    contention = sum(lines.get(f"contention {label}", 0.0) for label in EQUAL) / 1e3
    sharded, pauses = lines["sharded"] / 1e3, sum(lines[label] for label in PAUSES) / 1e3
    energy = power * (seconds + contention) + SHARDED_W * sharded
    other = joules + RING_W * max(0.0, pauses)
    low, high = 600.0, HIGHEST
    for _ in range(50):
        clock = (low + high) / 2
        length = seconds + contention + sharded + pauses
        length += share * (seconds + sharded) * (f1 / clock - 1)
        over = energy * (clock / f1) ** EXPONENT + other > power * length
        low, high = (low, clock) if over else (clock, high)
    return low, length


def main() -> None:
    folder = Path(sys.argv[1])
    rows, samples, steps = visit.results(folder), Samples(folder), medians(folder)
    idle = mean(
        watts(samples, row)[1] for row in rows if row["row"] == "rings" and row["phase"] == "idle"
    )
    alone, added = rings(rows, samples, idle), beside(rows, samples, idle)
    print(f"idle {idle:.0f} W; nJ per byte sent, rings alone:", end=" ")
    print(", ".join(f"{gpus} GPUs {value * 1e9:.2f}" for gpus, value in sorted(alone.items())))
    for (kernel, gpus), value in sorted(added.items()):
        print(f"beside {kernel}, {gpus} GPUs: {value * 1e9:.2f}")
    marginal = mean(added.values())
    print("| step | clock, N / 1: real | links 0 | ring beside | ring alone | time: the same |")
    print("|---|---|---|---|---|---|")
    for part, lines in growths(real_steps(folder)).items():
        shape, gpus = part.split("@")
        if shape not in STEPS:
            continue
        f1, power = phase(rows, samples, f"{shape}@1")
        seconds = steps[f"{shape}@1"] / 1e3
        _, share, *sent_gb = STEPS[shape]
        gigabytes = sent_gb[0 if gpus == "2" else 1]
        clocks = [phase(rows, samples, part)[0] / f1 - 1]
        times = [steps[part] / steps[f"{shape}@1"] - 1]
        for each in (0.0, marginal, alone[int(gpus)]):
            joules = each * gigabytes * 1e9
            clock, length = solved(lines, seconds, f1, power - idle, joules, share)
            clocks.append(clock / f1 - 1)
            times.append(length / seconds - 1)
        text = " | ".join(f"{value * 100:+.1f} %" for value in clocks)
        print(f"| {part} | {text} | {', '.join(f'{value * 100:+.1f}' for value in times)} |")


if __name__ == "__main__":
    main()
