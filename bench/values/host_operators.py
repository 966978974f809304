"""What operators on large host tensors cost one thread: `python -m bench.values.host_operators`.

The constants of libintercept/values/skip.cpp come from here. Needs no GPU and no phantora-ns.
"""

import time
from collections.abc import Callable

import torch

ELEMENTS, ROUNDS = 32 << 20, 3


def seconds(work: Callable[[], object]) -> float:
    """The least CPU time of some rounds; the first one is left out."""
    work()
    taken = []
    for _ in range(ROUNDS):
        before = time.thread_time()
        work()
        taken.append(time.thread_time() - before)
    return min(taken)


def main() -> None:
    torch.set_num_threads(1)
    first, second, third = torch.empty(ELEMENTS), torch.ones(ELEMENTS), torch.ones(ELEMENTS)
    narrow = torch.empty(ELEMENTS, dtype=torch.bfloat16)
    cases: dict[str, tuple[int, Callable[[], object]]] = {  # bytes read and written per element
        "normal_": (4, lambda: first.normal_()),
        "uniform_": (4, lambda: first.uniform_()),
        "normal_ of bfloat16": (2, lambda: narrow.normal_()),
        "fill_": (4, lambda: first.fill_(1)),
        "copy_": (8, lambda: first.copy_(second)),
        "copy_ to bfloat16": (6, lambda: narrow.copy_(second)),
        "add_": (12, lambda: first.add_(second)),
        "addcmul_": (16, lambda: first.addcmul_(second, third)),
        "sqrt into new memory": (8, lambda: second.sqrt()),
        "div into new memory": (12, lambda: second.div(third)),
    }
    for name, (moved, work) in cases.items():
        taken = seconds(work)
        per_element, bandwidth = taken / ELEMENTS * 1e9, ELEMENTS * moved / taken / 1e9
        print(f"{name:22} {per_element:6.2f} ns an element {bandwidth:6.1f} bytes a ns")


if __name__ == "__main__":
    main()
