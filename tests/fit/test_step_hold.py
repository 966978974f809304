"""When a run is ended after its first steps. The ranks are made statistics that move as told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.launch.run.step_hold import FILE, STILL_S, HoldRule, StepHold
from phantora_ns.protocol import (
    RANK_STATS_AT,
    RANK_STATS_FILE,
    RANK_STATS_MAGIC,
    RANK_STATS_VERSION,
)
from phantora_ns.protocol import RANK_STATS


class Ranks:
    """Ranks that step as real ones do: up to the step in the file. `needs[rank][step]` is the memory
    that is used by the end of a step."""

    def __init__(self, folder, needs):
        (folder / RANK_STATS_FILE).mkdir()
        self.folder, self.needs = folder, needs

    def limit(self):
        return int((self.folder / FILE).read_text())

    def go(self, ranks=None):
        """Each of `ranks` steps until it is held, or its steps end."""
        for number, needs in enumerate(self.needs):
            if ranks is not None and number not in ranks:
                continue
            limit = self.limit()
            steps = min(limit, len(needs))
            grown = max(
                (s for s in range(1, steps + 1) if needs[s - 1] > max([0, *needs[: s - 1]])),
                default=0,
            )
            self.write(
                number, steps=steps, grown_step=grown, held_step=limit if steps == limit else 0
            )

    def write(self, number, **values):
        page = bytearray(RANK_STATS.size)
        values |= {"magic": RANK_STATS_MAGIC, "version": RANK_STATS_VERSION}
        for name, value in values.items():
            at = RANK_STATS_AT[name]
            page[at : at + 8] = value.to_bytes(8, "little")
        (self.folder / RANK_STATS_FILE / str(number)).write_bytes(page)


def run(ranks, hold):
    """Lets ranks step until the run is ended."""
    for _ in range(100):
        ranks.go()
        if hold.look():
            return hold.seen
    raise AssertionError("never ended")


@pytest.mark.parametrize(
    "needs, step, grown",
    [
        ([[5] * 30], 4, 1),
        ([[5, 6, 6] + [6] * 30], 4, 2),
        ([[5, 6, 7] + [7] * 30], 6, 3),  # as DDP, which makes its buckets again in the third
        ([[5] * 30, [5, 5, 5, 5, 5, 6] + [6] * 30], 4, 1),  # later than anybody looks
        ([[5] * 30, [5, 5, 5, 6] + [6] * 30], 6, 4),
        ([list(range(1, 40))], 20, 20),
    ],
)
def test_a_run_is_ended_once_memory_has_not_grown(tmp_path, needs, step, grown):
    ranks = Ranks(tmp_path, needs)
    seen = run(ranks, StepHold(tmp_path, len(needs), HoldRule()))
    assert (seen.step, seen.grown_step, seen.without_steps) == (step, grown, 0)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=25, max_size=25), min_size=1, max_size=3),
    st.lists(st.sets(st.integers(0, 2)), max_size=20),
)
def test_the_pace_of_ranks_does_not_matter(tmp_path_factory, needs, turns):
    """Whoever steps first, and however often somebody looks: the same steps, for the same reason."""
    ended = []
    for paces in ([], turns):
        folder = tmp_path_factory.mktemp("run")
        ranks = Ranks(folder, needs)
        hold = StepHold(folder, len(needs), HoldRule())
        done = False
        for pace in paces:
            ranks.go(pace)
            done = done or hold.look()
        ended.append(hold.seen if done else run(ranks, hold))
    assert ended[0] == ended[1]


def test_ranks_that_do_not_step_are_not_waited_for_for_ever(tmp_path):
    clock = [0.0]
    ranks = Ranks(tmp_path, [[5] * 30, []])
    hold = StepHold(tmp_path, 2, HoldRule(), now=lambda: clock[0])
    ranks.go()
    assert not hold.look()
    ranks.write(1, clock_ns=7)  # it still moves
    clock[0] += 2 * STILL_S
    assert not hold.look()
    clock[0] += 2 * STILL_S
    assert hold.look() and hold.seen.without_steps == 1


def test_nobody_is_ended_before_the_first_step(tmp_path):
    clock = [0.0]
    ranks = Ranks(tmp_path, [[]])
    hold = StepHold(tmp_path, 1, HoldRule(), now=lambda: clock[0])
    ranks.go()
    for _ in range(3):
        clock[0] += 100 * STILL_S
        assert not hold.look()
