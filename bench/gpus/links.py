"""What links in use draw: by how much clocks fall from one GPU to several.

    python -m bench.gpus.links DIR...

Why it exists: a ring's energy per byte (law.py) explains a third of that fall, and on two GPUs, which send less
than four, the clock falls as far. So links draw power while they are in use, however much they send. DIR: visits.
Printed: the fall of each step's clock, real and by the law of phantora_ns/model/power.py; the power of links that
describes the calibration parts (C) best, beside each energy per byte; and the errors of both kinds of parts. The
law's own error on one GPU cancels out.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

from bench.gpus.clocks import Part, steps
from phantora_ns.config import load_gpu
from phantora_ns.model.power import Power

LINK = 0.5, 0.6, 0.7
"""nJ per byte: what kernels beside a ring tell (law.py) is 0.48 to 0.69."""
MOST_W = 80
Pair = tuple[Part, Part]


def pairs(folders: list[Path]) -> list[Pair]:
    """Steps on several GPUs, each with that on one GPU of the same host."""
    found = []
    for folder in folders:
        parts = {part.name: part for part in steps(folder)}
        for name, part in parts.items():
            one = parts.get(f"{name.split('@')[0]}@1")
            if part.sent_gb and one is not None:
                found.append((one, part))
    return found


def fall(pair: Pair, power: Power) -> float:
    one, several = pair
    return several.clock(power) / one.clock(power) - 1


def error(pair: Pair, power: Power) -> float:
    one, several = pair
    return fall(pair, power) - (several.mhz / one.mhz - 1)


def squares(found: list[Pair], powers: dict[str, Power], link: float, awake: float) -> float:
    return mean(
        error(pair, replace(powers[pair[1].gpu], link=link, awake=awake)) ** 2 for pair in found
    )


def main() -> None:
    found = pairs([Path(name) for name in sys.argv[1:]])
    powers = {gpu: load_gpu(gpu).power for gpu in {several.gpu for _, several in found}}
    for one, several in found:
        law = fall((one, several), powers[several.gpu])
        told = f"real {several.mhz / one.mhz - 1:+.1%}, law {law:+.1%}"
        print(f"{several.gpu} {several.name:20} {'C' if several.seen else 'E'} {told}")
    seen = [pair for pair in found if pair[1].seen]
    for link in LINK:
        square, awake = min((squares(seen, powers, link, watts), watts) for watts in range(MOST_W))
        print(f"{link} nJ/B: {awake} W, root mean square {square**0.5:.1%}")
    for label, some in (("C", seen), ("E", [pair for pair in found if not pair[1].seen])):
        errors = [error(pair, powers[pair[1].gpu]) for pair in some]
        print(f"{label}: mean error {mean(map(abs, errors)):.1%}, signed {mean(errors):+.1%}")


if __name__ == "__main__":
    main()
