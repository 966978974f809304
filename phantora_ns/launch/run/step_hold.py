"""Ends a run after its first steps, once no rank's memory grows any more (`phantora-ns fit`).

Why it exists: what a job needs shows in its first steps, and the job does not know that nobody wants the
others. Rule: ranks wait at the end of a step that is named here (libintercept/work/steps.c), and only then
are they looked at. So the result does not depend on how fast anything ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phantora_ns.protocol import RANK_STATS_FILE, RankStats
from phantora_ns.report.rank_stats import read_rank_stats

FILE = "hold"
LOOK_S = 0.02  # between two looks at the ranks
STILL_S = 15.0
"""When some ranks wait and nothing has moved for so long, the others will not come: they do not step."""


@dataclass(frozen=True)
class HoldRule:
    """Ranks wait at the end of step `first`, and of every `apart`-th after it, until memory has not grown
    for `quiet` steps. `most`: no step after this one."""

    first: int = 4  # 1 makes the optimizer's states; DDP makes its buckets again in 3
    apart: int = 2
    quiet: int = 2
    most: int = 20


@dataclass(frozen=True)
class Seen:
    """Why a run was ended. `step`: the last one. `grown_step`: the last in which a rank's memory grew.
    `without_steps`: ranks that told no steps."""

    step: int
    grown_step: int
    without_steps: int


class StepHold:
    """Looks at the ranks of the run in `run_dir`, `ranks` of them. `seen`: why the run was ended."""

    def __init__(
        self,
        run_dir: Path,
        ranks: int,
        rule: HoldRule,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir, self._ranks, self._rule, self._now = run_dir, ranks, rule, now
        self._step = rule.first
        self._moved: tuple[float, object] = (now(), None)
        self.seen: Seen | None = None
        self._tell()

    def _tell(self) -> None:
        """A whole number or none is in the file: it is short, and replaced by a rename."""
        path = self._run_dir / FILE
        scratch = path.with_suffix(".new")
        scratch.write_text(f"{self._step}\n")
        scratch.replace(path)

    def look(self) -> bool:
        """Whether the run is to end. Lets ranks go on that all wait, and whose memory still grows."""
        ranks = self._read()
        waiting = [stats for stats in ranks if stats.held_step == self._step]
        if not waiting or (len(waiting) < self._ranks and not self._still(ranks)):
            return False
        grown = max(stats.grown_step for stats in waiting)
        rule = self._rule
        everybody = len(waiting) >= self._ranks
        if everybody and self._step - grown < rule.quiet and self._step < rule.most:
            self._step = min(self._step + rule.apart, rule.most)
            self._tell()
            return False
        self.seen = Seen(self._step, grown, max(0, self._ranks - len(waiting)))
        return True

    def _still(self, ranks: list[RankStats]) -> bool:
        """Whether nothing has moved for STILL_S."""
        state = [(stats.clock_ns, stats.steps, stats.calls, stats.sent_seq) for stats in ranks]
        if state != self._moved[1]:
            self._moved = (self._now(), state)
        return self._now() - self._moved[0] >= STILL_S

    def _read(self) -> list[RankStats]:
        found = []
        for path in sorted((self._run_dir / RANK_STATS_FILE).iterdir()):
            try:
                found.append(read_rank_stats(path))
            except (OSError, ValueError):  # it is being made
                continue
        return found
