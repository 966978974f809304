"""Which ranks run, in every place that computes it; and what is refused before the job starts."""

import importlib.util
from pathlib import Path

import pytest

from phantora_ns.config import load_cluster
from phantora_ns.config.changes import Changes
from phantora_ns.launch.command.job_command import parse_command
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.record.host_time import HostTimeOptions
from phantora_ns.launch.record.recorded_values import ValuesOption
from phantora_ns.launch.run.folding import Job, choose
from phantora_ns.model.fold import Fold
from phantora_ns.report.fold_part import fold_lines, fold_part

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [
    (1, 5, 5, 2),
    (2, 16, 16, 2),
    (8, 64, 64, 0),
    (1, 5, 10, 2),
    (4, 40, 120, 0),
    (8, 128, 1024, 2),
    (1, 3, 3, 0),
]


def startup_fold():
    path = ROOT / "phantora_ns" / "startup" / "_phantora_fold.py"
    spec = importlib.util.spec_from_file_location("_phantora_fold", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Fold


@pytest.mark.parametrize("shape", SHAPES)
def test_classes_partition_the_ranks(shape):
    fold = Fold(*shape)
    classes = {tuple(fold.whole([rank])) for rank in range(fold.world)}
    assert sorted(rank for one in classes for rank in one) == list(range(fold.world))
    for one in classes:
        assert len(one) == fold.members
        assert [fold.member(rank) for rank in one] == list(range(fold.members))
        assert {fold.representative(rank) for rank in one} == {one[1]}
        assert set(fold.witnesses(one[0])) == {one[0], *(one[-2:] if fold.last else ())}
        assert fold.deciding(one[-1]) == (one[-2] if fold.last else one[0] or None)
        # the pattern repeats: neighbours in a class are a period apart, within one block
        assert {b - a for a, b in zip(one, one[1:])} == {fold.period}
        assert len({rank // fold.block for rank in one}) == 1
    running = [rank for rank in range(fold.world) if fold.runs(rank)]
    assert len(running) == fold.running == (2 + fold.last) * len(classes)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_start_up_hook_computes_the_same(shape):
    fold, other = Fold(*shape), startup_fold()(",".join(map(str, shape)))
    for rank in range(fold.world):
        assert other.absent(rank) != fold.runs(rank)
        assert other.whole([rank]) == set(fold.whole([rank]))


def test_a_group_is_known_when_it_is_whole_or_within_one_copy():
    fold = startup_fold()("2,16,16,2")
    assert fold.knows(range(16)) and fold.knows([4, 5]) and fold.knows(range(0, 16, 2))
    assert not fold.knows([0, 1, 2, 3]) and not fold.knows([0, 2, 14])


@pytest.mark.parametrize(
    "shape", [(0, 8, 8), (3, 8, 8), (2, 8, 12), (2, 8, 8), (16, 16, 16), (4, 8, 8, 0)]
)
def test_numbers_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError):
        Fold(*shape)


def job(command="torchrun --nnodes 8 --nproc-per-node 2 x.py", host="model", changes=(), **more):
    parsed = parse_command(
        command.split(), {"PATH": str(Path(__import__("sys").executable).parent)}
    )
    cluster = load_cluster("h200-rail", 8, 2, Changes((), changes))
    known = {"sync": "conservative", "values": ValuesOption(), "leading": None} | more
    return Job(parsed, cluster, 16, HostTimeOptions(host), **known)


def test_fewer_witnesses_are_asked_for_with_a_period():
    assert choose("2", job(), "first").fold == Fold(2, 16, 16, 0)
    assert choose("4", job(), "first").fold == Fold(4, 16, 16, 0)  # classes of four
    with pytest.raises(UsageError, match="--fold-witnesses has no effect"):
        choose("off", job(), "first")


@pytest.mark.parametrize(
    "last, witnesses, said", [(2, 3, "witnesses"), (0, 1, "the first of each class alone")]
)
def test_the_report_says_how_many_ranks_were_compared(tmp_path, last, witnesses, said):
    run = {"fold_asked": "2", "not_folded": None, "fold": Fold(2, 16, 16, last).describe()}
    part = fold_part(tmp_path, run, {"folding": {"compared": 7}})
    assert (part["running"], part["absent"], part["witnesses"]) == (
        4 + 2 * last,
        12 - 2 * last,
        witnesses,
    )
    assert f"7 operations compared with {said}" in fold_lines(part)[0]


def test_a_job_that_repeats_itself_is_folded():
    assert choose("off", job(host="auto")).fold is None
    assert choose("2", job()).fold == choose("auto", job()).fold == Fold(2, 16, 16)
    assert choose("2/16", job(host="none")).fold == Fold(2, 16, 16)


@pytest.mark.parametrize(
    "text, changed, said",
    [
        ("2", {"host": "auto"}, "--host-time model"),
        ("2", {"host": "measured"}, "--host-time model"),
        ("2", {"command": "python x.py"}, "torchrun"),
        ("2", {"changes": ("3:10%",)}, "slower"),
        ("2", {"sync": "optimistic"}, "--sync"),
        ("2", {"values": ValuesOption("replay")}, "replay"),
        (
            "2",
            {"command": "torchrun --nnodes 8 --nproc-per-node 2 --max-restarts 1 x.py"},
            "started again",
        ),
        ("1", {}, "multiple of 2"),
        ("4", {}, "members"),
        ("3", {}, "blocks"),
    ],
)
def test_what_cannot_be_right_is_refused_or_runs_unfolded(text, changed, said):
    with pytest.raises(UsageError, match=said):
        choose(text, job(**changed))
    if changed:
        unfolded = choose("auto", job(**changed))
        assert unfolded.fold is None and said in unfolded.reason


@pytest.mark.parametrize("text", ["", "x", "2/", "-1", "2/x"])
def test_other_words_are_no_period(text):
    with pytest.raises(UsageError, match="--fold"):
        choose(text, job())
