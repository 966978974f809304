"""Strikes a job's runs at random, and says what was wrong after each.

    python -m tests.reliability.campaign [--runs N] [--seed S] [--first N] [--torch] [--log FILE]

Why it exists: what a test kills on purpose is known to end well. A campaign finds the rest. Strike N of
seed S is always the same one: `--first N --runs 1 --seed S` repeats it.
"""

import argparse
import collections
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.reliability.runs import Range, cheap, with_torch
from tests.reliability.strikes import draw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--torch", action="store_true", help="torchrun and PyTorch")
    parser.add_argument("--log", type=Path, help="a line of JSON for each strike")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds")
    options = parser.parse_args()
    job = with_torch() if options.torch else cheap(2, 100)
    began, done, bad = time.monotonic(), collections.Counter(), 0
    with tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as folder:
        there = Range(Path(folder), job)
        print(f"seed {options.seed}; a run takes {there.peaceful.wall_s:.1f} s", flush=True)
        for number in range(options.first, options.first + options.runs):
            if time.monotonic() - began > options.until:
                break
            strike = draw(f"{options.seed}-{number}", there.lives)
            run = there.fire(strike)
            done[strike.role, strike.kind, "missed" if run.struck is None else "struck"] += 1
            bad += bool(run.wrong)
            verdict = "; ".join(run.wrong) or "ok"
            print(f"{number} {strike}: code {run.code}, {run.messages[-1:]}: {verdict}", flush=True)
            if run.wrong:
                print(run.err[-6000:], flush=True)
            if options.log:
                with options.log.open("a") as log:
                    entry = {"number": number, "seed": options.seed, "role": strike.role}
                    entry |= {"kind": strike.kind, "after_s": strike.after_s, "code": run.code}
                    entry |= {"struck": run.struck is not None, "wrong": run.wrong}
                    entry |= {
                        "messages": run.messages,
                        "wall_s": run.wall_s,
                        "torch": options.torch,
                    }
                    log.write(json.dumps(entry) + "\n")
    for (role, kind, what), count in sorted(done.items()):
        print(f"{role:10} {kind:18} {what:8} {count}")
    print(f"{sum(done.values())} strikes of seed {options.seed}, {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
