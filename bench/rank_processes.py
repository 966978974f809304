"""The ranks of a run that a bench has started, among all processes of the machine.

Why it exists: ranks live in namespaces of their own, and their ancestors are no children of the bench. So they are
found by a variable that the bench has set. To look at a thousand processes takes seconds of CPU time, which must not
come out of what is measured.
"""

import threading
import time
from collections.abc import Iterator

import psutil

SELDOM = 40
"""A look is followed by a pause of so many times what it took."""


def looks(
    ended: threading.Event, variable: str, value: str, pause_s: float
) -> Iterator[list[psutil.Process]]:
    """The ranks whose environment has `variable=value`, again and again until `ended` is set. `pause_s`: the least
    pause between two looks. What is done with a look counts as part of it."""
    wait_s = pause_s
    while not ended.wait(wait_s):
        began = time.monotonic()
        yield list(_ranks(variable, value))
        wait_s = max(pause_s, SELDOM * (time.monotonic() - began))


def _ranks(variable: str, value: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        # PHANTORA_WARM_TAKE: it makes the image of a warm start
        helper = "PHANTORA_WARM_TAKE" in environment
        if environment.get(variable) == value and "LOCAL_RANK" in environment and not helper:
            yield process
