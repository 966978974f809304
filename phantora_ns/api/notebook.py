"""The line of progress in a notebook.

Why it exists: a notebook is no terminal, so the line of the command cannot be drawn over there; a cell's
output can be replaced. Rule: IPython is used where it runs this process already, and never imported
otherwise.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


@contextlib.contextmanager
def progress_line(wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """What to call with each new line; None outside of notebooks. The line goes when it is left."""
    if not (wanted and in_notebook()):
        yield None
        return
    from IPython.display import display

    shown: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def show(text: str) -> None:
        shown.update({"text/plain": text}, raw=True)

    try:
        yield show
    finally:
        show("")
