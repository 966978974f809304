"""How a sweep of single calls runs them.

Why it exists: the sweeps keep the GPU cool by resting for as long as each call took, end in time, and leave
out what fails.
"""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch

REPEATS = 4
Work = tuple[str, Callable[[], object]]
"""A name, and what is run."""


def rested(run: Callable[[], object]) -> None:
    """Runs a call four times, each followed by a pause as long as the call and its kernels took."""
    for _ in range(REPEATS):
        begin = time.monotonic()
        run()
        torch.cuda.synchronize()
        until = 2 * time.monotonic() - begin
        while time.monotonic() < until:
            pass


def sweep(cases: Iterable[Work], seconds: float) -> None:
    """Runs the cases on the first GPU, and begins none after `seconds`. Those that fail are named at the end."""
    torch.cuda.set_device(0)
    torch.backends.cudnn.benchmark = False
    begin, done, failed = time.monotonic(), 0, set()
    for name, run in cases:
        if time.monotonic() - begin > seconds:
            print(f"no time left at {name}", flush=True)
            break
        try:
            rested(run)
        except (RuntimeError, NotImplementedError) as error:
            failed.add(f"{name}: {str(error).splitlines()[0]}")
        done += 1
        if done % 100 == 0:
            print(f"{done}, {time.monotonic() - begin:.0f} s", flush=True)
    for line in sorted(failed):
        print(line, file=sys.stderr)
    print(f"{done} cases, {len(failed)} failed, {time.monotonic() - begin:.0f} s", flush=True)


def shuffled(groups: Iterable[tuple[str, Callable[[], Iterable[Work]]]]) -> Iterator[Work]:
    """The works of all groups, group by group in a random order that is always the same. Each group is a name, and what
    yields its works, so that only one group's tensors exist at a time."""
    chosen = list(groups)
    random.Random(1).shuffle(chosen)
    for name, made in chosen:
        for kind, run in made():
            yield f"{kind} {name}", run
        torch.cuda.empty_cache()


def main(
    about: str,
    cases: Callable[[], Iterable[Work]],
    further: Callable[[], Iterable[Work]] | None = None,
) -> None:
    """What a sweep's file runs: every so many of its cases, in their order. `about`: the file's docstring. `further`:
    cases that came later, for `--further`."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="end before so much time")
    parser.add_argument("--every", type=int, default=1, help="one of so many: a rehearsal")
    parser.add_argument(
        "--skip", type=int, default=0, help="leave out the first so many: they are recorded"
    )
    if further:
        parser.add_argument(
            "--further", action="store_true", help="only the cases that were added later"
        )
    options = parser.parse_args()
    chosen = further if further and options.further else cases
    sweep(itertools.islice(chosen(), options.skip, None, options.every), options.seconds)
