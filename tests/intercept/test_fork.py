"""Why it exists: a forked child inherits locks that other threads of the parent held. After CUDA has
been used, CUDA in a child is an error, as with the real driver; it never hangs."""

import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "libintercept"


def test_children_of_a_process_that_used_cuda_get_an_error(run_program, hub):
    done = run_program("forked")
    assert done.values == {"0": "200"}, done.stderr[-2000:]


def test_every_lock_of_a_simulated_rank_is_free_in_a_child():
    """In a leader's child the real driver answers."""
    files = [f for f in SOURCES.rglob("*.[ch]") if f.relative_to(SOURCES).parts[0] != "leader"]
    locks = [
        line
        for file in files
        for line in file.read_text().splitlines()
        if re.search(r"= PTHREAD_(MUTEX|RWLOCK)_INITIALIZER", line)
    ]
    assert len(locks) > 10
    assert [line for line in locks if "PH_FREE_IN_CHILD" not in line] == []
