"""Strikes a job's runs at random, and says what was wrong after each.

    python -m tests.reliability.campaign [--runs N] [--seed S] [--first N] [--torch | --led] [--shows] [--role ROLE]
                                         [--log FILE]

Why it exists: what a test kills on purpose is known to end well. A campaign finds the rest. Strike N of
seed S hits the same role with the same signal, at the same part of its life: `--first N --runs 1
--seed S` repeats it.
"""

import argparse
import collections
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.reliability.runs import Range, Run, cheap, led, with_torch
from tests.reliability.strikes import LEADER, ROLES, Strike, draw


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Strikes a job's runs at random.")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="the number of the first strike")
    parser.add_argument("--nodes", type=int, default=2, help="of the cheap job")
    parser.add_argument("--torch", action="store_true", help="torchrun and PyTorch instead")
    parser.add_argument("--led", action="store_true", help="rank 0 leads on an emulated GPU")
    parser.add_argument("--shows", action="store_true", help="also traces and a page")
    parser.add_argument(
        "--role", choices=(*ROLES, LEADER), help="only this one; strikes are other ones then"
    )
    parser.add_argument("--log", type=Path, help="a line of JSON for each strike")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none begins later")
    return parser.parse_args()


def keep(file: Path, options: argparse.Namespace, strike: Strike, run: Run) -> None:
    """Adds a strike to the log."""
    entry = {
        "seed": options.seed,
        "job": "torch" if options.torch else "led" if options.led else f"{options.nodes} nodes",
        "role": strike.role,
        "kind": strike.kind,
        "after_s": round(strike.after_s, 3),
        "struck": run.struck,
        "code": run.code,
        "messages": run.messages,
        "wrong": run.wrong,
    }
    with file.open("a") as log:
        log.write(json.dumps(entry) + "\n")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is under way is ended, too
    options = read_options()
    if options.led:
        job = led(100)
    elif options.torch:
        job = with_torch(options.shows)
    else:
        job = cheap(options.nodes, 100, options.shows)
    began = time.monotonic()
    done: collections.Counter[tuple[str, str]] = collections.Counter()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as folder:
        there = Range(Path(folder), job)
        roles = (options.role,) if options.role else there.roles
        print(f"seed {options.seed}; a run takes {there.peaceful.wall_s:.1f} s", flush=True)
        for number in range(options.first, options.first + options.runs):
            if time.monotonic() - began > options.seconds:
                break
            strike = draw(f"{options.seed}-{number}", there.lives, roles)
            run = there.fire(strike)
            done[strike.role, strike.kind] += 1
            bad += bool(run.wrong)
            print(f"{number} {strike}: code {run.code}: {'; '.join(run.wrong) or 'ok'}", flush=True)
            if run.wrong:
                print(run.err[-6000:], flush=True)
            if options.log:
                keep(options.log, options, strike, run)
    for (role, kind), count in sorted(done.items()):
        print(f"{role:10} {kind:18} {count}")
    print(f"{done.total()} strikes of seed {options.seed}, {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
