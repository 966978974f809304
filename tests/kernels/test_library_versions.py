"""Which answers were recorded under other versions of the libraries than the job's."""

import sqlite3

import pytest
from recorded import gemm, kernel, record

from phantora_ns.config.versions import supported_versions
from phantora_ns.kernels.database import databases, interchange
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.library_versions import LibraryVersions
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import SignatureKind, Source

OLD = {"torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "9.19.0", "cublas": "13.1.0"}
NEW = {"torch": "2.15.0+cu132", "cuda": "13.2", "cudnn": "9.26.0", "cublas": "13.4.1"}
KERNEL, GEMM = SignatureKind.KERNEL, SignatureKind.GEMM


def versions(**changed):
    return LibraryVersions.of(OLD | changed)


def test_only_major_and_minor_of_what_both_know_count():
    old = LibraryVersions("2.11", "13.0", "9.19", "13.1")
    assert versions() == versions(torch="2.11.1", cudnn="9.19.7", cublas="13.1.9.9") == old
    assert not old.differ(LibraryVersions()) and not old.differ(LibraryVersions(torch="2.11"))
    for name, text in (
        ("torch", "2.12.0"),
        ("cuda", "12.8"),
        ("cudnn", "9.20"),
        ("cublas", "12.9"),
    ):
        assert old.differ(versions(**{name: text})) and versions(**{name: text}).differ(old)
    assert old.words(versions(cudnn="9.26.0", cublas="13.4.1")) == "cuDNN 9.19, cuBLAS 13.1"


def test_a_record_without_cudnn_has_that_of_its_torch():
    (release,) = [one for one in supported_versions().releases if one.torch == "2.11.0"]
    assert LibraryVersions.of({"torch": "2.11.0+cu130", "cuda": "13.0"}) == LibraryVersions.of(
        {"torch": "2.11.0", "cuda": "13.0", "cudnn": release.cudnn, "cublas": release.cublas}
    )
    other = LibraryVersions.of({"torch": "2.11.0+cu126", "cuda": "12.6"})  # another build's
    assert other == ("2.11", "12.6", "", "")
    assert LibraryVersions.of({"torch": None, "cuda": None}) == LibraryVersions()


@pytest.fixture
def file(tmp_path):
    """A product measured under the old versions, a kernel under both, another under the new."""
    old = record(
        tmp_path / "old.sqlite",
        (GEMM, gemm(), None, [100]),
        (KERNEL, kernel("both"), None, [10]),
        uid="old",
        **OLD,
    )
    new = record(
        tmp_path / "new.sqlite",
        (KERNEL, kernel("both"), None, [12]),
        (KERNEL, kernel("new"), None, [20]),
        uid="new",
        **NEW,
    )
    databases.merge(tmp_path / "both.sqlite", [old, new])
    return tmp_path / "both.sqlite"


@pytest.mark.parametrize(
    ("job", "elsewhere"),
    [
        (OLD, {"gemm": False, "both": False, "new": True}),
        (NEW, {"gemm": True, "both": False, "new": False}),
        (OLD | {"cudnn": "9.10.2"}, {"gemm": True, "both": True, "new": True}),
    ],
)
def test_each_record_is_beside_the_job(file, job, elsewhere):
    times = KernelTimes("h200", [file], LibraryVersions.of(job))
    asked = {
        "gemm": (GEMM, gemm()),
        "both": (KERNEL, kernel("both")),
        "new": (KERNEL, kernel("new")),
    }
    for name, (kind, fields) in asked.items():
        assert not times.recorded_elsewhere(kind, fields)  # nothing has been answered yet
        assert times.lookup(kind, fields)[1] == Source.EXACT
        assert times.recorded_elsewhere(kind, fields) == elsewhere[name], name
    others = {other.words(times.versions) for other in times.other_versions}
    assert bool(others) == any(elsewhere.values())


def test_what_is_not_recorded_or_not_known_is_not_counted(file):
    times = KernelTimes("h200", [file], LibraryVersions.of(NEW | {"torch": "2.9.1"}))
    times.lookup(KERNEL, kernel("never recorded"))
    assert not times.recorded_elsewhere(KERNEL, kernel("never recorded"))
    unknown = KernelTimes("h200", [file])
    unknown.lookup(GEMM, gemm())
    assert not unknown.recorded_elsewhere(GEMM, gemm()) and unknown.versions is None


def test_what_this_runs_leader_measures_is_the_jobs_own(file):
    times = KernelTimes("h200", [file], LibraryVersions.of(NEW))
    fields = kernel("of the leader")
    times.lookup(KERNEL, fields)
    assert times.learn(KERNEL, fields, [5]) and not times.recorded_elsewhere(KERNEL, fields)


def test_the_shipped_file_knows_what_it_was_recorded_under():
    with Database.open(databases.shipped_path("h200")) as shipped:
        assert shipped.libraries() == {LibraryVersions("2.11", "13.0", "9.19", "13.1")}


def test_a_file_without_the_later_columns_is_read_and_merged(file, tmp_path):
    """What releases before this one wrote."""
    older = tmp_path / "older.sqlite"
    older.write_bytes(file.read_bytes())
    connection = sqlite3.connect(older)
    for name in ("cudnn", "cublas"):
        connection.execute(f"ALTER TABLE runs DROP COLUMN {name}")
    connection.commit()
    connection.close()
    with Database.open(older) as database:
        assert [run.fields["cudnn"] for run in database.runs()] == ["", ""]
        assert versions() in database.libraries()  # those of torch 2.11.0
        lines = list(interchange.export_lines(database))
    databases.merge(tmp_path / "merged.sqlite", [older])
    with Database.open(tmp_path / "merged.sqlite") as merged:
        assert list(interchange.export_lines(merged)) == lines
    for run in interchange.read_lines(lines, "lines")[1]:
        assert run.fields["cublas"] == ""
