"""Runs inside an emulated rank: what the values library adds to an operator's host time, in
nanoseconds.

The same operator is timed on the real clock with the callback on and off, alternately. The figure
is the difference of the two minima, because disturbances only add time.
"""

import json
import time

import torch

CLOCK = time.CLOCK_THREAD_CPUTIME_ID
ROUNDS, CALLS = 15, 200


def best_ns(function):
    """Nanoseconds of CPU time per call: [callback off, callback on]."""
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for enabled in (False, True):
            torch.autograd._enable_record_function(enabled)
            start = time.clock_gettime_ns(CLOCK)
            for _ in range(CALLS):
                function()
            best[enabled] = min(best[enabled], (time.clock_gettime_ns(CLOCK) - start) / CALLS)
    torch.autograd._enable_record_function(True)
    return best


def main():
    big, other = torch.zeros(2048, 2048, device="cuda"), torch.zeros(2048, 2048, device="cuda")
    small, same = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    page, indices = torch.zeros(128, 128, device="cuda"), torch.arange(64, device="cuda")
    host = torch.zeros(4)
    many = [torch.zeros(1024, 256, device="cuda") for _ in range(100)]
    cases = {
        "big add_": lambda: big.add_(other),
        "big add": lambda: big + other,
        "big view": lambda: big.view(-1),
        "big sum (small result)": lambda: big.sum(),
        "big foreach_mul_, 100 tensors": lambda: torch._foreach_mul_(many, 0.5),
        "small add_": lambda: small.add_(same),
        "small add": lambda: small + same,
        "small index": lambda: page[indices],
        "64 KiB add_": lambda: page.add_(page),
        "small empty": lambda: torch.empty(64, device="cuda"),
        "host tensor add": lambda: host + host,
    }
    for name, function in cases.items():
        function()
        off, on = best_ns(function)
        print(
            "CASE "
            + json.dumps({"case": name, "without_ns": round(off), "added_ns": round(on - off)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
