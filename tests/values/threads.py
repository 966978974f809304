"""Threads that run the same small operators at once, forward and backward. Prints a JSON list of the results that
differ from the CPU's.

Why it exists: under ThreadSanitizer (test_races.py) it reports what the values library shares between threads without
a lock.
"""

import json
import threading
import warnings

import battery
import torch

THREADS = 4
ALONE = ("captured_beside_large_tensors",)
"""Others may not launch work while a graph is captured."""


def run(number, together, wrong):
    """All cases, each thread from another one on."""
    names = [name for name in battery.CASES if name not in ALONE]
    first = number * len(names) // THREADS
    together.wait()
    for name in names[first:] + names[:first]:
        wrong += battery.wrong_with(battery.compare, name, battery.CASES[name])


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong, together = [], threading.Barrier(THREADS)
    threads = [
        threading.Thread(target=run, args=(number, together, wrong)) for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("THREADS " + json.dumps(sorted(set(wrong))))


main()
