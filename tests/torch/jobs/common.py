"""Why it exists: what every job script here shares: named checks whose outcome each rank prints as
one JSON line.

A check is a function marked with `@check`; it yields one line of text per thing that is wrong. It
may not stop the job: ranks go through the same checks in the same order, so that one failure leaves
the others meaningful.
"""

import json
import os
import sys
import traceback

import torch

CHECKS = []


def check(function):
    """Marks a generator of complaints; the test side finds it by its name (../outcome.py)."""
    CHECKS.append(function)
    return function


def rank():
    return int(os.environ.get("RANK", 0))


def say(kind, **fields):
    """Prints one line of at most PIPE_BUF bytes in one write, so that ranks do not mix theirs."""
    line = f"{kind} {json.dumps({'rank': rank(), **fields})}\n".encode()
    sys.stdout.flush()
    os.write(1, line)


def run_checks(only=None):
    """Runs every check (or those whose names are in `only`) and reports each; returns how many
    failed."""
    failed = 0
    for function in CHECKS:
        if only is not None and function.__name__ not in only:
            continue
        wrong = []
        try:
            wrong.extend(function() or ())
        except Exception:  # the job must go on to the next check: other ranks will
            wrong.append(traceback.format_exc()[-1500:])
        failed += bool(wrong)
        say("CHECK", name=function.__name__, wrong=[text[:1500] for text in wrong[:2]])
    return failed


def between_events(work):
    """Milliseconds between two events around `work`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def timed(work):
    """Milliseconds of `work`, which begins on an idle GPU."""
    torch.cuda.synchronize()
    return between_events(work)


def timed_behind_work(work):
    """Milliseconds that `work` takes the GPU when it never waits for the host: it queues behind other work."""
    big = torch.empty(16384, 16384, device="cuda", dtype=torch.bfloat16)
    for _ in range(40):  # half a second
        torch.mm(big, big)
    return between_events(work)


def differs(what, given, expected, tolerance=0.0):
    """Yields a complaint unless `given` (a tensor on any device, or a plain value) equals
    `expected`, dtype included."""
    if isinstance(given, torch.Tensor):
        expected, given = torch.as_tensor(expected).detach().cpu(), given.detach().cpu()
        if given.dtype != expected.dtype or given.shape != expected.shape:
            yield f"{what}: {given.dtype} {tuple(given.shape)}, not {expected.dtype} {tuple(expected.shape)}"
        elif not torch.allclose(
            given.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True
        ):
            yield f"{what}: {given.flatten()[:16].tolist()}, not {expected.flatten()[:16].tolist()}"
    elif given != expected and not (
        isinstance(given, float) and abs(given - expected) <= tolerance
    ):
        yield f"{what}: {given!r:.300}, not {expected!r:.300}"
