"""Makes each call of a run fail, and says what was wrong after each.

    python -m tests.reliability.fault_campaign [--seed S] [--site TEXT] [--log FILE] [--seconds N] [--shows]
                                               [--torch | --led]

Why it exists: as for the campaign of kills (campaign.py). A log is gone on with: what it has is not
tried again.
"""

import argparse
import collections
import errno
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.reliability.faults import STEPS, Fault, FaultRange, draw
from tests.reliability.runs import cheap, led, with_torch


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Makes each call of a run fail.")
    parser.add_argument("--seed", default=str(random.randrange(10**6)))
    parser.add_argument("--site", default="", help="only sites with this in them")
    parser.add_argument("--nth", type=int, help="only the N-th call")
    parser.add_argument("--error", help="only this error, such as ENOSPC")
    parser.add_argument("--shows", action="store_true", help="also traces and a page")
    parser.add_argument("--torch", action="store_true", help="at torchrun")
    parser.add_argument("--led", action="store_true", help="rank 0 leads on an emulated GPU")
    parser.add_argument("--list", action="store_true", help="the sites, and no more")
    parser.add_argument("--log", type=Path, help="a line of JSON for each fault")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="none begins later")
    return parser.parse_args()


def chosen(options: argparse.Namespace, sites: dict[str, int]) -> list[Fault]:
    """The faults that the options leave."""
    faults = [
        fault
        for fault in draw(sites, options.seed)
        if options.site in fault.site and options.nth in (None, fault.nth)
    ]
    if options.error:
        number = getattr(errno, options.error)
        faults = [Fault(fault.site, fault.nth, number) for fault in faults]
    done = set()
    if options.log and options.log.exists():
        done = {json.loads(line)["fault"] for line in options.log.read_text().splitlines()}
    return [fault for fault in faults if str(fault) not in done]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is under way is ended, too
    options = read_options()
    began = time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="pr-", dir="/tmp") as folder:
        job = with_torch(options.shows) if options.torch else cheap(1, STEPS, options.shows)
        job = led(STEPS) if options.led else job
        there = FaultRange(Path(folder), job)
        sites = there.sites()
        if options.list:
            print("\n".join(f"{count:6} {site}" for site, count in sites.items()))
            return 0
        faults = chosen(options, sites)
        print(f"seed {options.seed}: {len(sites)} sites, {len(faults)} faults", flush=True)
        for fault in faults:
            if time.monotonic() - began > options.seconds:
                break
            run = there.hit(fault)
            done[fault.role if run.struck else "not reached"] += 1
            bad += bool(run.wrong)
            missed = "" if run.struck else " (not reached)"
            wrong = "; ".join(run.wrong) or "ok"
            print(f"{fault}{missed}: code {run.code}: {wrong}", flush=True)
            if run.wrong:
                print(run.err[-6000:], flush=True)
            if options.log:
                entry = {"fault": str(fault), "code": run.code, "struck": run.struck}
                entry |= {"messages": run.messages, "wrong": run.wrong}
                with options.log.open("a") as log:
                    log.write(json.dumps(entry) + "\n")
    for role, count in sorted(done.items()):
        print(f"{role:12} {count}")
    print(f"{done.total()} faults of seed {options.seed}, {bad} with something wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
