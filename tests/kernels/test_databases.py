"""Merging databases is a union; exporting loses nothing; finding them follows the order that the
documentation gives."""

import itertools
import json
import multiprocessing
import os
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import kernel, record, varied

from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases, interchange
from phantora_ns.kernels.database.database import Database, DatabaseError
from phantora_ns.kernels.database.durations import Statistics
from phantora_ns.kernels.database.recording import Recording
from phantora_ns.kernels.database.records import Run, union
from phantora_ns.kernels.database.writer import save


def dump(path) -> list[str]:
    with Database.open(path) as database:
        return list(interchange.export_lines(database))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Recordings of runs a to d, and a second, fuller copy of a."""
    folder = tmp_path_factory.mktemp("files")
    found = [varied(folder / f"{uid}.sqlite", uid, seed) for seed, uid in enumerate("abcd")]
    with Database.open(found[0]) as database:
        (run,) = database.runs()
    run.samples[signature.encode(0, kernel("more"))] = next(iter(run.samples.values()))
    save(folder / "fuller.sqlite", "h200", [run])
    return [*found, folder / "fuller.sqlite"]


@settings(max_examples=15)
@given(st.data())
def test_merging_is_a_union(files, data):
    """Whatever the order and grouping, the result is the same to the byte, and merging again
    changes nothing."""
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        whole, grouped = Path(folder) / "whole", Path(folder) / "grouped"
        databases.merge(whole, chosen)
        cut = data.draw(st.integers(0, len(chosen)))
        for path in data.draw(st.permutations(chosen[:cut])):
            databases.add(grouped, [path])
        databases.add(grouped, data.draw(st.permutations(chosen)))
        assert grouped.read_bytes() == whole.read_bytes()
        databases.merge(whole, [whole, whole])
        assert grouped.read_bytes() == whole.read_bytes()
        with Database.open(whole) as database:
            names = {path.stem for path in chosen}
            expected = {"a" if name == "fuller" else name for name in names}
            assert [run.uid for run in database.runs()] == sorted(expected)
            if "a" in expected:
                assert (signature.encode(0, kernel("more")) in database.runs()[0].samples) == (
                    "fuller" in names
                )


def test_copies_of_a_run_are_in_a_total_order(files):
    with Database.open(files[0]) as database:
        (run,) = database.runs()
    other = Run(run.uid, {**run.fields, "driver": "another"}, run.host, run.samples)
    for pair in itertools.permutations([run, other]):
        assert union([[r] for r in pair]) == union([[run], [other]])
    assert union([]) == []


def test_what_is_in_a_merged_file_is_what_was_in_the_inputs(files, tmp_path):
    databases.merge(tmp_path / "m", files[:4])
    lines = [line for path in files[:4] for line in dump(path)[1:]]
    assert dump(tmp_path / "m")[1:] == lines
    with Database.open(tmp_path / "m") as merged:
        opened = [Database.open(path) for path in files[:4]]
        assert merged.summary()["durations"] == sum(d.summary()["durations"] for d in opened)
        assert merged.summary()["total_ns"] == sum(d.summary()["total_ns"] for d in opened)
        stopped = {
            (r.configuration, data)
            for d in opened
            for r in d.runs()
            for data, s in r.samples.items()
            if s.first
        }
        each = [o for d in opened for o in d.observations()]
        both = list(merged.observations())
        assert all(o in each for o in both)
        assert all(
            (o.configuration, signature.encode(o.kind, o.fields)) in stopped
            for o in each
            if o not in both
        )
        for database in opened:
            database.close()
    assert sqlite3.connect(tmp_path / "m").execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@settings(max_examples=10)
@given(st.lists(st.sampled_from(range(5)), min_size=1, max_size=5))
def test_an_export_read_back_is_the_same_file(files, chosen):
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder) / "one", Path(folder) / "two"
        databases.merge(one, [files[i] for i in chosen])
        lines = dump(one)
        save(two, *interchange.read_lines(lines, "lines"))
        assert two.read_bytes() == one.read_bytes() and dump(two) == lines


def broken(lines, number, **changes):
    """The lines with fields of one changed; None removes a field."""
    value = {**json.loads(lines[number]), **changes}
    return [
        *lines[:number],
        json.dumps({k: v for k, v in value.items() if v is not ...}),
        *lines[number + 1 :],
    ]


def test_a_broken_export_is_one_clear_line(files):
    lines = dump(files[1])
    head, run, sample = 0, 1, 2
    for text, where in (
        ([], "empty"),
        (["{"], "line 1"),
        (["[]"], "line 1"),
        (["{}"], "no export"),
        (lines[1:], "no export"),
        (broken(lines, head, version=1), "version 1"),
        (broken(lines, head, gpu=""), "which GPU"),
        ([lines[0], *lines[2:]], "line 2: a signature before any run"),
        ([*lines, lines[1]], "run 'b' is there twice"),
        ([*lines, lines[-1]], r"line \d+: a signature is there twice"),
        (broken(lines, run, colour="red"), "colour"),
        (broken(lines, run, run=5), "line 2: 5 is no name"),
        (broken(lines, run, host=[]), "line 2: host times"),
        (broken(lines, sample, kind=...), "line 3: 'kind' is missing"),
        (broken(lines, sample, kind="x"), "line 3: 'x' is no kind"),
        (broken(lines, sample, fields={"a": 1}), "line 3: a map"),
        (broken(lines, sample, fields=[{"hex": "zz"}]), "line 3"),
        (broken(lines, sample, median=...), "line 3: .*median"),
        (broken(lines, sample, median=-1), "line 3: statistics"),
        (broken(lines, sample, median="1"), "line 3: statistics"),
        (broken(lines, sample, median=10**400), "line 3: int too large"),
        (broken(lines, sample, first=1), "line 3: first"),
        (broken(lines, sample, count=1 << 62), "line 3: statistics"),
        (broken(lines, sample, extra=1), "line 3: .*extra"),
    ):
        with pytest.raises(DatabaseError, match=where) as caught:
            interchange.read_lines(text, "some.jsonl")
        assert str(caught.value).startswith("some.jsonl: ") and "\n" not in str(caught.value)


def test_an_export_by_other_writers_of_json_is_the_same(files):
    lines = dump(files[2])
    other = [
        json.dumps(json.loads(line), indent=None, sort_keys=True)
        .replace(".0,", ",")
        .replace(".0}", "}")
        for line in lines
    ]
    assert other != lines and interchange.read_lines(other, "other") == interchange.read_lines(
        lines, "ours"
    )


def test_files_of_other_gpus_do_not_merge(tmp_path, files):
    foreign = record(tmp_path / "a100.sqlite", (0, kernel(), None, [1]), gpu="a100")
    with pytest.raises(DatabaseError, match="holds times of 'a100'"):
        databases.merge(tmp_path / "m", [files[0], foreign])
    with pytest.raises(DatabaseError, match="nothing to merge"):
        databases.merge(tmp_path / "m", [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a100.sqlite"]


def test_a_merge_that_fails_leaves_the_file_as_it_was(tmp_path, files, monkeypatch):
    out = tmp_path / "m"
    databases.merge(out, files[:1])
    before = out.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(before[: len(before) // 2])
    with pytest.raises(DatabaseError, match="cut"):
        databases.add(out, [files[1], cut])

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(DatabaseError, match="No space left"):
        databases.add(out, [files[1]])
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.lock", "cut", "m"]


def test_a_reader_of_the_old_file_goes_on_while_it_is_replaced(tmp_path, files):
    out = tmp_path / "m"
    databases.merge(out, files[:1])
    with Database.open(out) as reader:
        before = reader.runs()
        databases.add(out, files[1:3])
        assert reader.runs() == before
    with Database.open(out) as reader:
        assert len(reader.runs()) == 3


def test_merging_while_it_is_recorded(tmp_path):
    """A copy taken half-way gives way to the whole run."""
    out = tmp_path / "m"
    with Recording(tmp_path / "r", {"gpu": "h200"}) as recording:
        recording.add(0, kernel(), None, [5])
        recording.flush(now=True)
        databases.add(out, [recording.path])
        with Database.open(out) as database:
            assert database.summary()["durations"] == 1
        recording.add(0, kernel(), None, [5, 7])
    databases.add(out, [tmp_path / "r"])
    with Database.open(out) as database:
        assert database.statistics(signature.encode(0, kernel())) == Statistics.of([5, 5, 7])
        assert len(database.runs()) == 1


def _add(out, paths, start) -> None:
    start.wait()
    for path in paths:
        databases.add(out, [path])


def test_processes_that_add_at_once_lose_nothing(tmp_path):
    paths = [
        record(tmp_path / f"{i}.sqlite", (0, kernel(f"k{i}"), None, [i + 1])) for i in range(12)
    ]
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    workers = [
        context.Process(target=_add, args=(tmp_path / "out" / "m", paths[i::3], start))
        for i in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        if worker.is_alive():
            os.kill(worker.pid, signal.SIGKILL)
        assert worker.exitcode == 0
    with Database.open(tmp_path / "out" / "m") as database:
        assert database.summary()["runs"] == database.summary()["signatures"] == 12


def test_what_a_killed_writer_left_is_deleted_by_the_next(tmp_path, files):
    """Killed for real while it writes, several times: at last one file and its lock are there."""
    out, context = tmp_path / "out.sqlite", multiprocessing.get_context("fork")
    (tmp_path / ".other.sqlite.7.new").touch()
    left = 0
    for _ in range(20):
        process = context.Process(target=databases.add, args=(out, files))
        process.start()
        while process.is_alive() and not list(tmp_path.glob(".out.sqlite.*.new")):
            pass
        process.kill()
        process.join()
        left += len(list(tmp_path.glob(".out.sqlite.*.new*")))
    assert left > 0
    runs = databases.add(out, files)
    beside = {path.name for path in tmp_path.iterdir()}
    assert beside == {"out.sqlite", ".out.sqlite.lock", ".other.sqlite.7.new"}
    with Database.open(out) as database:
        assert database.runs() == runs


def test_where_databases_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(databases, "SHIPPED", tmp_path / "shipped")
    assert databases.find("h200") == [] and databases.every_path() == []
    own, shipped = tmp_path / "data" / "phantora-ns" / "kernels", tmp_path / "shipped"
    for folder in (own, shipped):
        folder.mkdir(parents=True)
        record(folder / "h200.sqlite", (0, kernel(), None, [1]))
    record(shipped / "a100.sqlite", (0, kernel(), None, [1]), gpu="a100")
    (own / "notes.txt").write_text("")
    extra = record(tmp_path / "extra.sqlite", (0, kernel(), None, [1]))
    order = [extra, own / "h200.sqlite", shipped / "h200.sqlite"]
    assert databases.user_path("h200") == order[1] and databases.shipped_path("h200") == order[2]
    found = databases.find("h200", [str(extra)])
    assert [d.path for d in found] == order
    assert databases.paths("h200", [order[2]]) == [order[2], order[1]]
    assert databases.every_path() == [order[1], shipped / "a100.sqlite", order[2]]
    assert databases.paths("b200") == []
    for named, said in (
        (tmp_path / "missing", "no such file"),
        (shipped / "a100.sqlite", "holds times of 'a100'"),
    ):
        with pytest.raises(DatabaseError, match=said):
            databases.find("h200", [named])
    for database in found:
        database.close()


def test_a_relative_data_home_is_not_one(monkeypatch):
    """XDG Base Directory Specification: a path that is not absolute is invalid and to be
    ignored."""
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("HOME", "/home/someone")
    assert databases.user_folder() == Path("/home/someone/.local/share/phantora-ns/kernels")
