"""Reads the ranks' statistics from outside.

Why it exists: the file outlives its process, so the report and the progress line can read what a
rank counted even when it was killed.
"""

from __future__ import annotations

from pathlib import Path

from phantora_ns.protocol import RANK_STATS, RANK_STATS_MAGIC, RANK_STATS_VERSION, RankStats


def read_rank_stats(path: Path) -> RankStats:
    """The statistics in file `path`. Raises OSError when it cannot be read, ValueError when it holds
    none of this version."""
    with open(path, "rb") as file:
        data = file.read(RANK_STATS.size)
    if len(data) < RANK_STATS.size:
        raise ValueError(f"{path}: {len(data)} bytes are too few for a rank's statistics")
    stats = RankStats.unpack(data)
    if (stats.magic, stats.version) != (RANK_STATS_MAGIC, RANK_STATS_VERSION):
        raise ValueError(f"{path}: no rank's statistics of version {RANK_STATS_VERSION}")
    return stats
