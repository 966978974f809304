"""The kernel-time database: what a recording puts in comes out, and a bad file is one clear
error."""

import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from recorded import CONTEXT, GRAPH, HOST, gemm, kernel, record, varied

from phantora_ns.config import load_gpu
from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases, records, schema
from phantora_ns.kernels.database.database import Database, DatabaseError
from phantora_ns.kernels.database.durations import KEPT, Statistics
from phantora_ns.kernels.database.recording import COMMIT_S, COMMIT_SAMPLES, Recording
from phantora_ns.kernels.database.schema import APPLICATION_ID, RUN_FIELDS, SCHEMA_VERSION
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.kernels.signature import SignatureError
from phantora_ns.protocol import BoundBy

META = {"gpu": "h200", "configuration": "test"}


def measured(database, kind=0, fields=None) -> Statistics | None:
    return database.statistics(signature.encode(kind, kernel() if fields is None else fields))


def test_what_goes_in_comes_out(tmp_path):
    fields = {name: f"{name} of a run" for name in RUN_FIELDS}
    entries = [
        (0, kernel("k", b"\0\xff"), CONTEXT, [7, 5, 6]),
        (1, gemm(), CONTEXT, [10]),
        (2, GRAPH, None, [3, 3]),
        (3, [0, 1 << 40, 2, 2], None, [9]),
        (4, ["cusparseSpMM", [1, -2]], None, [1]),
    ]
    with Database.open(
        record(tmp_path / "a.sqlite", *entries, host=HOST, uid="one", **fields), gpu="h200"
    ) as database:
        found = {signature.encode(e.kind, e.fields): e for e in database.signatures()}
        assert list(found) == sorted(signature.encode(kind, f) for kind, f, _, _ in entries)
        for kind, its, context, values in entries:
            entry = found[signature.encode(kind, its)]
            assert (entry.kind, entry.fields, entry.context) == (kind, its, context)
            assert entry.statistics == measured(database, kind, its) == Statistics.of(values)
        (run,) = database.runs()
        assert (run.uid, run.fields, run.count, run.configuration) == (
            "one",
            fields,
            8,
            fields["configuration"],
        )
        assert (
            records.Host.of_message(run.host.message()) == run.host == records.Host.of_message(HOST)
        )
        assert database.summary() == {"runs": 1, "signatures": 5, "durations": 8, "total_ns": 44}
        assert sorted(database.observations()) == sorted(
            ("configuration of a run", kind, f, context, Statistics.of(v).median, len(v), "one")
            for kind, f, context, v in entries
        )


def test_launches_that_the_leader_stopped_for_count_only_alone(tmp_path):
    first, later = (0, kernel(), CONTEXT, [900], True), (0, kernel(), None, [100, 102])
    with Database.open(record(tmp_path / "alone.sqlite", first)) as database:
        assert measured(database) == Statistics.of([900])
        assert database.exact(signature.encode(0, kernel()), lambda uid: 0.5) == 450
    for name, entries in {
        "before": [first, later],
        "after": [later, first],
        "between": [later[:3] + ([100],), first, later[:3] + ([102],)],
    }.items():
        path = record(tmp_path / f"{name}.sqlite", *entries)
        with Database.open(path) as database:
            assert measured(database) == Statistics.of([100, 102])
            assert [o.median_ns for o in database.observations()] == [101]
    databases.merge(
        tmp_path / "both.sqlite", [tmp_path / "alone.sqlite", tmp_path / "before.sqlite"]
    )
    with Database.open(tmp_path / "both.sqlite") as database:
        assert measured(database) == Statistics.of([100, 102]) and len(database.runs()) == 2
        assert database.exact(signature.encode(0, kernel())) == 101
        assert database.exact(signature.encode(0, kernel(b"never"))) is None
        assert [o.median_ns for o in database.observations()] == [101]


def test_each_runs_time_is_brought_to_one_clock_before_they_are_joined(tmp_path):
    """The same product on a cool GPU (1600 MHz) and, more often, on a hot one: the median lies among
    times at one clock, not among the times as they were."""
    gpu = load_gpu("h200")
    power = replace(
        gpu.power, recorded=(1600.0,) * 5, recorded_in={BoundBy.COMPUTE: {"hot": 1200.0}}
    )
    record(tmp_path / "cool.sqlite", (1, gemm(m=4096), None, [1500] * 6), uid="cool")
    record(tmp_path / "hot.sqlite", (1, gemm(m=4096), None, [2000] * 5), uid="hot")
    paths = [tmp_path / "cool.sqlite", tmp_path / "hot.sqlite"]
    for order in (paths, paths[::-1]):
        databases.merge(tmp_path / "both.sqlite", order)
        times = KernelTimes(replace(gpu, power=power), [tmp_path / "both.sqlite"])
        assert times.lookup(1, gemm(m=4096))[0] == 1500
        (tmp_path / "both.sqlite").unlink()
    assert 2000 * power.recorded_share(BoundBy.COMPUTE, "hot") == 1500


def test_a_products_time_is_that_at_one_clock(tmp_path):
    """A run whose GPU was hot measured longer times. Work that memory bounds takes the same."""
    gpu = load_gpu("h200")
    power = replace(
        gpu.power, recorded=(1600.0,) * 5, recorded_in={BoundBy.COMPUTE: {"hot": 1200.0}}
    )
    thin = gemm(m=1)
    path = record(
        tmp_path / "hot.sqlite",
        (1, gemm(m=4096), CONTEXT, [2000]),
        (1, thin, CONTEXT, [2000]),
        (0, kernel(), CONTEXT, [2000]),
        uid="hot",
    )
    times = KernelTimes(replace(gpu, power=power), [path])
    found = {
        name: times.lookup(kind, f)[::2]
        for name, kind, f in (
            ("product", 1, gemm(m=4096)),
            ("thin", 1, thin),
            ("kernel", 0, kernel()),
        )
    }
    assert found == {
        "product": (1500, BoundBy.COMPUTE),
        "thin": (2000, BoundBy.MEMORY),
        "kernel": (2000, BoundBy.MEMORY),
    }


ROWS = ["aten::native_layer_norm", 1 << 20, 0, [[64, 4096]]]
WIDER = ["aten::native_layer_norm", 1 << 23, 0, [[64, 32768]]]
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, true>(int, float)"
COPY = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)"


def test_a_launch_that_does_not_tell_its_work_is_known_by_its_operands(tmp_path):
    """A norm's grid has a block for each row: rows of 768 numbers said that rows of 4,096 take no
    longer."""
    path = record(
        tmp_path / "a.sqlite",
        (0, kernel(NORM, b"1"), ROWS, [900]),
        (0, kernel(COPY, b"1"), ROWS, [700]),
    )
    times = KernelTimes("h200", [path])
    assert times.lookup(0, kernel(NORM, b"2"), ROWS)[:2] == (900, 1)
    assert times.lookup(0, kernel(NORM, b"2"), WIDER)[1] != 1
    assert times.lookup(0, kernel(COPY, b"2"), WIDER)[:2] == (700, 1), (
        "its launch says how much it fills"
    )


def test_more_durations_than_are_kept(tmp_path):
    values = list(range(1, 10 * KEPT))
    with Database.open(record(tmp_path / "a.sqlite", (0, kernel(), None, values))) as database:
        found = measured(database)
    assert (found.count, found.total, found.minimum, found.maximum) == (
        len(values),
        sum(values),
        1,
        len(values),
    )
    # Five standard errors of the median of KEPT uniform draws.
    assert abs(found.median / len(values) - 0.5) < 5 * 0.5 / KEPT**0.5


def test_variants_agree_or_are_silent(tmp_path):
    entries = [(0, kernel(identity=bytes([i])), None, [ns]) for i, ns in enumerate([100, 105, 109])]
    entries.append((0, kernel("another"), None, [5000]))
    with Database.open(record(tmp_path / "a.sqlite", *entries)) as database:
        assert database.variants(kernel(identity=b"new")) == 105
        assert database.variants(kernel("other")) is None and database.variants(["k"]) is None
    with Database.open(
        record(tmp_path / "b.sqlite", *entries, (0, kernel(identity=b"far"), None, [200]))
    ) as database:
        assert database.variants(kernel(identity=b"new")) is None


def test_lookup_prefers_the_exact_signature_then_variants_then_the_model(tmp_path):
    path = record(
        tmp_path / "a.sqlite",
        (0, kernel(identity=b"1"), None, [1000]),
        (0, kernel(identity=b"2"), None, [1040]),
    )
    times = KernelTimes("h200", [path])
    assert times.lookup(0, kernel(identity=b"1"))[:2] == (1000, 0)
    assert times.lookup(0, kernel(identity=b"9"))[:2] == (1020, 1)
    assert times.lookup(0, kernel("unknown"))[1] == 7


def test_two_signatures_with_one_key_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(signature, "key_of", lambda data: 42)
    path = record(
        tmp_path / "a.sqlite",
        (0, kernel("a"), None, [1]),
        (0, kernel("b"), None, [2]),
        (1, gemm(), None, [3]),
    )
    with Database.open(path) as database:
        assert [
            measured(database, *it).median
            for it in ((0, kernel("a")), (0, kernel("b")), (1, gemm()))
        ] == [1, 2, 3]
        assert measured(database, 0, kernel("c")) is None


def test_calls_are_weighted_by_their_counts_and_sites_take_the_least(tmp_path):
    one = {
        "score": 100,
        "calls": [["launch", 1, 10, 8]],
        "sites": [[5, 1, "x", 3, 10, 10]],
        "latency": [1, 4, 4],
        "gap": [0, 0, 0],
    }
    two = {
        "score": 300,
        "calls": [["launch", 3, 20, 12], ["copy", 2, 7, 6]],
        "sites": [[5, 1, "x", 2, 30, 20], [4, 2, "y", 1, 1, 1], [6, 1, "z", 1, 900, 900]],
    }
    # what was seen once gives way to what was seen more often
    one["sites"].append([6, 1, "z", 2, 9, 9])
    paths = [
        record(tmp_path / f"{i}.sqlite", host=host, uid=str(i)) for i, host in enumerate([one, two])
    ]
    databases.merge(tmp_path / "both.sqlite", paths)
    with Database.open(tmp_path / "both.sqlite") as database:
        assert database.host_calls() == {"copy": (2, 7, 6), "launch": (4, 17.5, 11)}
        assert database.call_sites() == [
            (5, 1, "x", 5, 10, 10),
            (6, 1, "z", 2, 9, 9),
            (4, 2, "y", 1, 1, 1),
        ]
        assert database.host_numbers() == (200, {"latency": (1, 4, 4)})
    with Database.open(paths[0]) as database:
        assert "gap" not in database.host_numbers().times


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {1: 2},
        {"score": -1},
        {"score": "fast"},
        {"score": float("nan")},
        {"calls": 5},
        {"calls": [["launch", 1, 2]]},
        {"calls": [[5, 1, 2, 3]]},
        {"calls": [["launch", -1, 2, 3]]},
        {"calls": [["launch", 1, float("inf"), 3]]},
        {"sites": [[-1, 1, "x", 1, 1, 1]]},
        {"sites": [[1 << 64, 1, "x", 1, 1, 1]]},
        {"sites": [[1, "1", "x", 1, 1, 1]]},
        {"sites": [[1, 1, b"x", 1, 1, 1]]},
        {"latency": [1, 2]},
        {"latency": {}},
        {"gap": [1.5, 1, 1]},
        {"gap": [1, -1, 1]},
    ],
)
def test_odd_host_messages_are_refused_and_change_nothing(tmp_path, message):
    with Recording(tmp_path / "a.sqlite", META) as recording:
        recording.host(HOST)
        with pytest.raises(DatabaseError, match="host"):
            recording.host(message)
    with Database.open(tmp_path / "a.sqlite") as database:
        assert database.runs()[0].host == records.Host.of_message(HOST)


@pytest.mark.parametrize(
    "kind, fields, context, durations",
    [
        (-1, [], None, [1]),
        ("0", [], None, [1]),
        (0, None, None, [1]),
        (0, "name", None, [1]),
        (0, [{}], None, [1]),
        (0, [object()], None, [1]),
        (0, ["\ud800"], None, [1]),
        (0, [1 << 64], None, [1]),
        (0, kernel(), "mm", [1]),
        (0, kernel(), [{1: 2}], [1]),
        (0, kernel(), None, [0]),
        (0, kernel(), None, [1, "2"]),
    ],
)
def test_odd_measurements_are_refused_whole(tmp_path, kind, fields, context, durations):
    nested = []
    for _ in range(100):
        nested = [nested]
    with Recording(tmp_path / "a.sqlite", META) as recording:
        with pytest.raises(ValueError):
            recording.add(kind, fields, context, durations)
        with pytest.raises(SignatureError):
            recording.add(0, nested, None, [1])
        assert recording.signatures == recording.durations == 0
        assert recording.add(0, kernel(), None, []) == 0
        assert recording.add(0, kernel(), None, [5]) == 1
    with Database.open(tmp_path / "a.sqlite") as database:
        assert database.summary() == {"runs": 1, "signatures": 1, "durations": 1, "total_ns": 5}


def test_a_recording_needs_a_gpu_and_known_fields(tmp_path):
    for meta, said in (
        ({}, "GPU"),
        ({"gpu": 5}, "GPU"),
        ({**META, "colour": "red"}, "colour"),
        ({**META, "date": 5}, "date"),
    ):
        with pytest.raises(DatabaseError, match=said):
            Recording(tmp_path / "a.sqlite", meta)
        assert not (tmp_path / "a.sqlite").exists()
    record(tmp_path / "a.sqlite")
    with pytest.raises(DatabaseError, match="exists already"):
        Recording(tmp_path / "a.sqlite", META)
    with pytest.raises(DatabaseError, match="cannot be written"):
        Recording(tmp_path / "nowhere" / "a.sqlite", META)


def test_a_reader_sees_what_the_writer_has_committed(tmp_path):
    now = [0.0]
    with Recording(tmp_path / "a.sqlite", META, clock=lambda: now[0]) as recording:
        with Database.open(recording.path, gpu="h200") as reader:
            recording.add(0, kernel(), None, [5])
            assert measured(reader) is None
            now[0] += COMMIT_S
            recording.flush()
            assert measured(reader).count == 1
            recording.add(0, kernel(), None, [7])
            assert measured(reader).count == 1
            recording.add(0, kernel("busy"), None, [1] * COMMIT_SAMPLES)
            assert (measured(reader).count, measured(reader, 0, kernel("busy")).count) == (
                2,
                COMMIT_SAMPLES,
            )
            recording.describe({"driver": "580"})
            assert reader.runs()[0].fields["driver"] == "580"
        # With another reader still there, closing loses nothing either.
        reader = Database.open(recording.path)
        recording.add(0, kernel(), None, [9])
    assert measured(reader).count == 3
    reader.close()
    with Database.open(tmp_path / "a.sqlite") as again:
        assert measured(again).count == 3


KILLED = """
import os, signal, sys
from phantora_ns.kernels.database.recording import Recording
recording = Recording(sys.argv[1], {"gpu": "h200"})
recording.add(0, ["k", 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, b""], None, [100, 200, 300])
recording.flush(now=True)
recording.add(0, ["late", 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, b""], None, [5])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_had_committed_is_there(tmp_path, root):
    path = tmp_path / "a.sqlite"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=root)
    assert ended.returncode == -signal.SIGKILL and (tmp_path / "a.sqlite-wal").stat().st_size
    with Database.open(path) as database:
        assert (
            measured(database) == Statistics.of([100, 200, 300])
            and measured(database, 0, kernel("late")) is None
        )


def test_a_file_that_is_damaged_meanwhile_is_an_error_of_ours(tmp_path):
    recording = Recording(tmp_path / "a.sqlite", META)
    recording.add(0, kernel(), None, [1])
    recording.flush(now=True)
    waiting = tmp_path / "a.sqlite-wal"
    with waiting.open("r+b") as file:  # in place: the recording has it open
        file.write(b"\xff" * waiting.stat().st_size)
    with pytest.raises(DatabaseError, match=r"a\.sqlite: cannot be written"):
        recording.close()


def test_a_failed_commit_loses_nothing(tmp_path):
    with Recording(tmp_path / "a.sqlite", META) as recording:
        recording.add(0, kernel("before"), CONTEXT, [1])
        recording.flush(now=True)
        ((pages,),) = recording._connection.execute("PRAGMA page_count").fetchall()
        recording._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DatabaseError, match="disk is full"):
            for i in range(1000):
                recording.add(0, kernel("x" * 300, i.to_bytes(2, "big")), CONTEXT, [i + 1])
            recording.flush(now=True)
        recording._connection.execute("PRAGMA max_page_count = 1000000")
        recording.flush(now=True)
        stored = recording.signatures
    with Database.open(tmp_path / "a.sqlite") as database:
        assert database.summary()["signatures"] == stored > 100
        assert measured(database, 0, kernel("before")).count == 1


def test_files_that_are_no_database_are_one_clear_error(tmp_path):
    ours = record(tmp_path / "ours.sqlite", (0, kernel(), None, [1]))
    text, empty, foreign, versions = (
        tmp_path / name for name in ("text", "empty", "foreign", "versions")
    )
    text.write_text("not a database, but long enough to be mistaken for one" * 30)
    empty.write_bytes(b"")
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    for version in (1, 99):
        connection = sqlite3.connect(versions)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        with pytest.raises(
            DatabaseError, match=f"schema version {version}, this release reads 2; record it anew"
        ):
            Database.open(versions)
    bare = tmp_path / "bare"
    connection = sqlite3.connect(bare)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.close()
    no = "no kernel-time database"
    for path, reason in (
        (text, no),
        (empty, no),
        (foreign, no),
        (bare, no),
        (tmp_path / "missing", "no such file"),
        (tmp_path, "no such file"),
    ):
        with pytest.raises(DatabaseError, match=reason) as caught:
            Database.open(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(DatabaseError, match="not of 'a100'"):
        Database.open(ours, gpu="a100")


@pytest.mark.parametrize(
    "damage, of_models",
    [
        ("UPDATE samples SET median = -5", True),
        ("UPDATE samples SET median = 'x'", True),
        ("UPDATE samples SET count = 'x'", True),
        ("UPDATE samples SET total = 'x'", False),
        ("UPDATE samples SET minimum = 1 << 60", False),
        ("UPDATE signatures SET rest = x'c1'", True),
        ("UPDATE signatures SET rest = x'01'", True),
        ("UPDATE contexts SET body = x'c1'", True),
    ],
)
def test_a_damaged_row_is_an_error_not_a_wrong_answer(tmp_path, damage, of_models):
    path = record(tmp_path / "a.sqlite", (0, kernel(), CONTEXT, [10, 20]))
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    for reader in (Database.signatures, *([Database.observations] if of_models else [])):
        with pytest.raises(DatabaseError, match="is damaged"):
            with Database.open(path) as database:
                list(reader(database))


def test_a_reference_to_nothing_is_an_error(tmp_path):
    for table in ("texts", "contexts", "runs", "signatures"):
        path = varied(tmp_path / f"{table}.sqlite", "x", 1)
        connection = sqlite3.connect(path)
        connection.execute(f"DELETE FROM {table}")
        connection.commit()
        connection.close()
        with Database.open(path) as database, pytest.raises(DatabaseError, match="is damaged"):
            database.runs()


def test_a_cut_file_is_an_error(tmp_path):
    path = record(
        tmp_path / "cut.sqlite", *((0, kernel(f"k{i}"), None, [i + 1]) for i in range(500))
    )
    data = path.read_bytes()
    for share in (0.05, 0.5, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DatabaseError) as caught:
            with Database.open(path) as database:
                database.runs()
        assert str(path) in str(caught.value)


def test_a_locked_file_is_named_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "BUSY_S", 0.01)
    path = record(tmp_path / "a.sqlite", (0, kernel(), None, [1]))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseError, match="is locked by another process"):
        Database.open(path)
    holder.execute("ROLLBACK")
    with Database.open(path) as database:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseError, match="is locked by another process"):
            measured(database)
    holder.close()


UNWRITABLE = """
import os, sys
from phantora_ns.kernels.database.database import Database, DatabaseError
if os.getuid() == 0:  # only after the imports: Python itself may be in a folder that others may not enter
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    print(Database.open(sys.argv[1]).summary()["durations"])
except DatabaseError as error:
    print(error)
"""


def read_unprivileged(path, root) -> str:
    """What a reader without any permission to write says of a file."""
    ended = subprocess.run(
        [sys.executable, "-c", UNWRITABLE, str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_file_in_a_folder_that_cannot_be_written(short_folder, root):
    path = record(short_folder / "a.sqlite", (0, kernel(), None, [1, 2]))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert not (short_folder / "a.sqlite-wal").exists()
    short_folder.chmod(0o555)
    path.chmod(0o444)
    assert read_unprivileged(path, root) == "2"
    short_folder.chmod(0o755)
    path.unlink()
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=root)
    assert ended.returncode == -signal.SIGKILL
    (short_folder / "a.sqlite-shm").unlink()
    for name in ("a.sqlite", "a.sqlite-wal"):
        (short_folder / name).chmod(0o444)
    short_folder.chmod(0o555)
    said = read_unprivileged(path, root)
    assert "its writer has not finished" in said and "\n" not in said


@pytest.fixture
def short_folder():
    """A folder that users other than this test's may enter, unlike pytest's own."""
    import shutil
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="phantora-db-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)
