"""Shards that do not come out even: jobs in which the last members of a class send and receive less than
the others. They fold to the nanosecond where the difference can be told apart, and are refused in words
where it cannot.
"""

import random

import pytest

from phantora_ns.model.fold import Fold
from phantora_ns.protocol import Collective
from tests.folding.test_law import CLUSTERS, EACH, NODES, WORLD, Run, living, slow

__all__ = ["living"]
WHOLE, LEFT = 1 << 20, 3 << 18
FOLD = Fold(EACH, WORLD, WORLD)
FIRST_ALONE = Fold(EACH, WORLD, WORLD, last=0)


def exchanging(sizes):
    """rank -> a program: the members of a class send each other their shards by one launch of sends and
    receives, as all_to_all with uneven sizes does. `sizes`: bytes of each member's shard."""

    def program(rank):
        own = rank // EACH
        pairs = []
        for peer in range(NODES):
            pairs += [(Collective.SEND, peer, sizes[peer])] * (sizes[peer] > 0)
            pairs += [(Collective.RECV, peer, sizes[own])] * (sizes[own] > 0)
        yield from [
            ("init", "A", list(range(rank % EACH, WORLD, EACH))),
            ("kernel", 1000, 100),
            ("pairs", "A", pairs),
            ("wait",),
            ("sync",),
            ("bye",),
        ]

    return program


def shifted(by, sizes):
    """rank -> a program: each member sends its own shard to the one `by` places on, around the class."""

    def program(rank):
        own = rank // EACH
        to, source = (own + by) % NODES, (own - by) % NODES
        sent = min(sizes[own], sizes[to])
        received = min(sizes[own], sizes[source])
        yield from [
            ("init", "A", list(range(rank % EACH, WORLD, EACH))),
            ("pairs", "A", [(Collective.SEND, to, sent), (Collective.RECV, source, received)]),
            ("wait",),
            ("sync",),
            ("bye",),
        ]

    return program


@pytest.mark.parametrize("links", CLUSTERS)
@pytest.mark.parametrize("last", [LEFT, 0], ids=["smaller", "empty"])
def test_an_exchange_with_a_smaller_last_shard_folds(tmp_path, links, last):
    programs = exchanging([WHOLE] * (NODES - 1) + [last])
    cluster = slow(CLUSTERS[links])
    whole = Run(tmp_path / "whole", cluster, programs, None, random.Random(1))
    folded = Run(tmp_path / "folded", cluster, programs, FOLD, random.Random(2))
    assert folded.times == whole.times
    whole.close()
    folded.close()


def test_a_job_whose_ranks_would_disagree_when_folded_is_refused_in_words(tmp_path):
    """The last member takes less from one that does not run than that one's representative sends."""
    programs = shifted(3, [WHOLE] * (NODES - 1) + [LEFT])
    cluster = slow(())
    Run(tmp_path / "whole", cluster, programs, None, random.Random(1)).close()
    with pytest.raises(AssertionError, match="this job cannot be folded: if ranks that do not run"):
        Run(tmp_path / "folded", cluster, programs, FOLD, random.Random(1))


def test_shards_that_get_smaller_before_the_last_are_refused_in_words(tmp_path):
    programs = exchanging([WHOLE] * (NODES - 2) + [LEFT] * 2)
    with pytest.raises(AssertionError, match=r"rank \d+ calls .*786432 bytes.* use --fold off"):
        Run(tmp_path / "folded", slow(()), programs, FOLD, random.Random(1))


@pytest.mark.parametrize("last", [LEFT, 0], ids=["smaller", "empty"])
def test_without_the_last_witness_what_does_not_fit_is_refused_all_the_same(tmp_path, last):
    programs = exchanging([WHOLE] * (NODES - 1) + [last])
    with pytest.raises(AssertionError, match="this job cannot be folded"):
        Run(tmp_path / "folded", slow(()), programs, FIRST_ALONE, random.Random(1))


@pytest.mark.parametrize("other", [0, 1])
def test_the_first_of_a_class_decides_when_it_runs_alone_but_for_rank_0(tmp_path, other):
    """`other`: the one rank that computes longer than the rest of its class, whose first member it is."""

    def programs(rank):
        yield from [
            ("init", "A", list(range(rank % EACH, WORLD, EACH))),
            ("kernel", 1000 + (rank == other), 100),
            ("collective", "A", Collective.ALL_REDUCE, WHOLE),
            ("wait",),
            ("sync",),
            ("bye",),
        ]

    Run(tmp_path / "all", slow(()), programs, FOLD, random.Random(1)).close()
    if other:
        with pytest.raises(AssertionError, match=f"rank {other + EACH} .*, and rank {other} "):
            Run(tmp_path / "first", slow(()), programs, FIRST_ALONE, random.Random(1))
        return
    run = Run(tmp_path / "first", slow(()), programs, FIRST_ALONE, random.Random(1))
    assert list(run.hub.folding.describe()["differences"]) == ["0"]
    run.close()
