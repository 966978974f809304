"""The kernel-time database: what goes in comes out, merging is exact, and a bad file is one clear error."""

import sqlite3
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.kernels import KernelTimes, signature
from phantora_ns.kernels.database import APPLICATION_ID, Database, DatabaseError, Statistics

META = {"gpu": "h200", "driver": "580", "cuda": "13.0", "torch": "2.11.0", "date": "2026-01-01", "clocks": "default",
        "provenance": "test"}
durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=30)


def kernel(name="k", identity=b"") -> list:
    return [name, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, identity]


@pytest.fixture
def database(tmp_path):
    with Database.create(tmp_path / "h200.db", **META) as made:
        yield made


def put(database, run, *entries):
    return database.insert(run, "2026-01-01", [(0, fields, Statistics.of(values)) for fields, values in entries])


@settings(max_examples=25)
@given(first=durations, second=durations)
def test_two_runs_taken_together_are_one_sample(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("db") / "x.db"
    with Database.create(path, **META) as database:
        put(database, "a", (kernel(), first))
        put(database, "b", (kernel(), second))
        found = database.statistics(signature.encode(0, kernel()))
    both = first + second
    assert (found.count, found.minimum, found.maximum) == (len(both), min(both), max(both))
    assert found.mean == pytest.approx(statistics.fmean(both))
    assert found.variance == pytest.approx(statistics.variance(both), rel=1e-6, abs=1e-3)
    assert min(both) <= found.median <= max(both)


def test_inserting_a_signature_again_merges_within_the_run(database):
    put(database, "a", (kernel(), [10, 20]))
    put(database, "a", (kernel(), [30]))
    found = database.statistics(signature.encode(0, kernel()))
    assert (found.count, found.mean, found.maximum) == (3, 20, 30)
    assert found.variance == pytest.approx(100)
    assert database.runs() == [("a", "2026-01-01")]


def test_merge_adds_each_run_once(tmp_path, database):
    put(database, "a", (kernel("x"), [100]))
    with Database.create(tmp_path / "other.db", **META) as other:
        put(other, "a", (kernel("x"), [100]))
        put(other, "b", (kernel("x"), [300]), (kernel("y"), [7]))
        assert database.merge(other) == 2
        assert database.merge(other) == 0
    assert [(f[0], s.count, s.median) for _, f, s in database.signatures()] == [("x", 2, 200), ("y", 1, 7)]
    with Database.create(tmp_path / "a100.db", **{**META, "gpu": "a100"}) as foreign:
        with pytest.raises(DatabaseError, match="a100"):
            database.merge(foreign)


def test_reading_works_beside_a_writer_and_sees_what_is_committed(database):
    put(database, "a", (kernel(), [100]))
    with Database.open(database.path, gpu="h200") as reader:
        assert reader.exact(signature.encode(0, kernel())) == 100
        put(database, "b", (kernel("late"), [5]))
        assert reader.exact(signature.encode(0, kernel("late"))) == 5
        with pytest.raises(DatabaseError, match="cannot be written"):
            put(reader, "c", (kernel(), [1]))


def test_a_failed_insert_leaves_nothing_behind(database):
    good, bad = Statistics.of([5]), Statistics(0, 1.0, 1.0, 1, 1, 0.0)
    with pytest.raises(DatabaseError):
        database.insert("a", "2026-01-01", [(0, kernel("x"), good), (0, kernel("y"), bad)])
    assert list(database.signatures()) == [] and database.runs() == []


def test_variants_agree_or_are_silent(database):
    put(database, "a", (kernel(identity=b"1"), [100]), (kernel(identity=b"2"), [105]), (kernel(identity=b"3"), [109]))
    assert database.variants(kernel(identity=b"new")) == 105
    assert database.variants(kernel("other")) is None
    put(database, "a", (kernel(identity=b"4"), [200]))
    assert database.variants(kernel(identity=b"new")) is None


def test_lookup_prefers_the_exact_signature_then_variants_then_the_model(database):
    put(database, "a", (kernel(identity=b"1"), [1000]), (kernel(identity=b"2"), [1040]))
    times = KernelTimes("h200", [database])
    assert times.lookup(0, kernel(identity=b"1"))[:2] == (1000, 0)
    assert times.lookup(0, kernel(identity=b"9"))[:2] == (1020, 1)
    assert times.lookup(0, kernel("unknown"))[1] == 7


def test_files_that_are_no_database_are_one_clear_error(tmp_path, database):
    text = tmp_path / "text"
    text.write_text("not a database, but long enough to be mistaken for one" * 30)
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    foreign = tmp_path / "foreign"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    newer = tmp_path / "newer"
    with sqlite3.connect(newer) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    ours = "no kernel-time database"
    for path, reason in ((text, ours), (empty, ours), (foreign, ours), (newer, "schema version 99"),
                         (tmp_path / "missing", "no such file"), (tmp_path, "no such file")):
        with pytest.raises(DatabaseError, match=reason) as caught:
            Database.open(path)
        assert str(path) in str(caught.value)
    with pytest.raises(DatabaseError, match="not of 'a100'"):
        Database.open(database.path, gpu="a100")
    with pytest.raises(DatabaseError, match="exists already"):
        Database.create(database.path, **META)
    with pytest.raises(DatabaseError, match="missing driver"):
        Database.create(tmp_path / "new", **{**META, "driver": ""})


def test_a_cut_file_is_an_error_not_a_wrong_answer(tmp_path):
    path = tmp_path / "cut.db"
    with Database.create(path, **META) as database:
        put(database, "a", *((kernel(f"k{i}"), [i + 1]) for i in range(500)))
    data = path.read_bytes()
    path.write_bytes(data[:len(data) // 2])
    with pytest.raises(DatabaseError):
        with Database.open(path) as database:
            list(database.signatures())


def test_statistics_refuse_what_is_no_duration():
    for values in ([], [0], [5, -1]):
        with pytest.raises(ValueError):
            Statistics.of(values)
