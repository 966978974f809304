"""A law of power from measure.py's lines, and what it predicts of mixes that it was not fitted to.

    python -m bench.power.fit [DATA_DIR]

Why it exists: under its power limit a GPU's clock is what the mix leaves, so a kernel's time follows
from what runs beside and before it. The law: a kernel at clock f takes
time(f) = t (1 - b + b F / f) and energy(f) = e (f / F)^g beyond the idle power; the clock is the
largest at which the mix stays within the limit. F is the highest clock. Calibration: kernels kept
up alone, and one kernel with pauses. Evaluation: pairs of kernels in turn, and training steps.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path

HIGHEST_MHZ = 1980.0


def read(folder: Path) -> list[dict]:
    with gzip.open(folder / "power.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def kind_of(work: str) -> str:
    """compute, attention or memory: what bounds a piece of work."""
    if work.startswith(("gemm", "wgrad")):
        return "compute"
    return "attention" if work.startswith("attention") else "memory"


class Law:
    """Fitted to lines `energy` and `pauses`; times in us, energies in J, power in W, clocks in MHz."""

    def __init__(self, rows: list[dict]) -> None:
        self.idle = next(row["watts_energy"] for row in rows if row["part"] == "idle")
        alone = {row["work"]: row for row in rows if row["part"] == "energy"}
        held = [row["watts_energy"] for row in alone.values() if row["reasons"]]
        self.limit = sum(held) / len(held)
        pauses = [row for row in rows if row["part"] == "pauses"]
        self.exponent = self._slope(pauses, alone, self._energy)
        self.share = {"memory": 0.0}
        for kind in ("compute", "attention"):
            self.share[kind] = self._share([r for r in pauses if kind_of(r["work"]) == kind])
        self.time: dict[str, float] = {}
        self.energy: dict[str, float] = {}
        for work, row in alone.items():
            ratio = HIGHEST_MHZ / row["mhz"]
            b = self.share[kind_of(work)]
            self.time[work] = row["us"] / (1 - b + b * ratio)
            joules = (row["watts_energy"] - self.idle) * row["us"] / 1e6
            self.energy[work] = joules * ratio**self.exponent

    def _energy(self, row: dict) -> float:
        return (row["watts_energy"] - self.idle) * row["us"] / row.get("busy", 1.0) / 1e6

    @staticmethod
    def _slope(pauses: list[dict], alone: dict, value) -> float:
        """d log(energy) / d log(clock), least squares within each work."""
        top = bottom = 0.0
        for work in {row["work"] for row in pauses}:
            rows = [row for row in pauses if row["work"] == work] + [alone[work]]
            points = [(math.log(row["mhz"]), math.log(value(row))) for row in rows]
            x0 = sum(x for x, _ in points) / len(points)
            y0 = sum(y for _, y in points) / len(points)
            top += sum((x - x0) * (y - y0) for x, y in points)
            bottom += sum((x - x0) ** 2 for x, _ in points)
        return top / bottom

    @staticmethod
    def _share(rows: list[dict]) -> float:
        """b of time(f) = t (1 - b + b F / f), least squares."""
        points = [(HIGHEST_MHZ / row["mhz"] - 1, row["us"]) for row in rows]
        x0 = sum(x for x, _ in points) / len(points)
        y0 = sum(y for _, y in points) / len(points)
        slope = sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)
        return slope / (y0 - slope * x0)

    def duration_us(self, work: str, mhz: float) -> float:
        b = self.share[kind_of(work)]
        return self.time[work] * (1 - b + b * HIGHEST_MHZ / mhz)

    def watts(self, counts: dict[str, float], mhz: float, pause_us: float = 0.0) -> float:
        """Mean power while so many of each work run in turn at one clock."""
        scale = (mhz / HIGHEST_MHZ) ** self.exponent
        joules = sum(count * self.energy[work] * scale for work, count in counts.items())
        us = sum(count * self.duration_us(work, mhz) for work, count in counts.items()) + pause_us
        return self.idle + joules * 1e6 / us

    def clock(self, counts: dict[str, float]) -> float:
        """The highest clock at which a mix stays within the limit."""
        low, high = 600.0, HIGHEST_MHZ
        if self.watts(counts, high) <= self.limit:
            return high
        for _ in range(40):
            middle = (low + high) / 2
            if self.watts(counts, middle) > self.limit:
                high = middle
            else:
                low = middle
        return low


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
    rows = read(folder)
    law = Law(rows)
    shares = ", ".join(f"{kind} {share:.2f}" for kind, share in law.share.items())
    print(f"idle {law.idle:.0f} W, limit {law.limit:.0f} W, energy ~ clock^{law.exponent:.2f}")
    print(f"share of the time that follows the clock: {shares}\n")
    print("| mix (counts per turn) | clock, real | predicted | us, real | predicted |")
    print("|---|---|---|---|---|")
    clocks, times, unchanged = [], [], []
    for row in (row for row in rows if row["part"] == "mix"):
        counts = dict(zip(row["work"], row["counts"], strict=True))
        mhz = law.clock(counts)
        told = [law.duration_us(work, mhz) for work in row["work"]]
        clocks.append(mhz / row["mhz"] - 1)
        for work, real, predicted in zip(row["work"], row["us"], told, strict=True):
            if kind_of(work) != "memory":
                times.append(predicted / real - 1)
                alone = next(r["us"] for r in rows if r["part"] == "energy" and r["work"] == work)
                unchanged.append(alone / real - 1)
        name = " + ".join(f"{count} {work}" for work, count in counts.items())
        real = " / ".join(f"{us:.1f}" for us in row["us"])
        print(f"| {name} | {row['mhz']:.0f} | {mhz:.0f} | {real} |", end="")
        print(" " + " / ".join(f"{us:.1f}" for us in told) + " |")
    for title, errors in (
        ("clock", clocks),
        ("compute-bound time, this law", times),
        ("compute-bound time, as kept up alone", unchanged),
    ):
        mean = sum(abs(e) for e in errors) / len(errors)
        signed = sum(errors) / len(errors)
        worst = max(errors, key=abs)
        print(f"\n{title}: mean error {mean:.1%}, signed {signed:+.1%}, worst {worst:+.1%}", end="")
    print()


if __name__ == "__main__":
    main()
