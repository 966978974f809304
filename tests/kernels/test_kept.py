"""Fits that are kept between runs: they say what fits made anew say, and cost no reading.

The oracle: the same look-up without a folder.
"""

import contextlib
import itertools
import os
import shutil
import sqlite3

import pytest

from phantora_ns.kernels.database import databases
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.fitted import kept
from phantora_ns.kernels.lookup import KernelTimes
from phantora_ns.protocol import Source

SHIPPED = databases.shipped_path("h200")
FITTED = {Source.GEMM, Source.LAW}
ONE_OF = 30
"""How many of the shipped signatures stand for one here: all of them take seconds to fit, each time."""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A database of some of what ships."""
    path = tmp_path_factory.mktemp("few") / "few.sqlite"
    shutil.copyfile(SHIPPED, path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM samples WHERE signature % ?", (ONE_OF,))
        connection.execute("DELETE FROM signatures WHERE id % ?", (ONE_OF,))
    return path


@pytest.fixture(scope="module")
def asked(few):
    """Signatures near recorded ones, of every kind, and what they are said to take."""
    times = KernelTimes("h200", [few])
    known = [*times.databases[0].observations()]
    found = []
    for kind in {one.kind for one in known}:
        of_kind = [one for one in known if one.kind == kind]
        for one in of_kind[:: len(of_kind) // 8 + 1]:
            fields = [x + 24 if isinstance(x, int) and x > 512 else x for x in one.fields]
            found.append((kind, fields, one.context))
    return {"asked": found, "told": [times.lookup(*one) for one in found]}


def told(asked, path, folder):
    times = KernelTimes("h200", [path], fits=folder)
    return [times.lookup(*one) for one in asked["asked"]]


@pytest.fixture
def no_reading(monkeypatch):
    """From now on nothing of a database may be read but single signatures."""

    def forbid():
        def refuse(self):
            raise AssertionError("it reads the whole database")

        monkeypatch.setattr(Database, "observations", refuse)

    return forbid


@pytest.fixture(scope="module")
def kept_fits(asked, few, tmp_path_factory):
    """A folder of fits, and what the run that made them was told."""
    folder = tmp_path_factory.mktemp("fits")
    return folder, told(asked, few, folder)


def test_a_second_run_reads_no_database_and_says_the_same(asked, few, kept_fits, no_reading):
    folder, first = kept_fits
    assert FITTED <= {source for _, source, _ in asked["told"]}
    assert first == asked["told"]
    no_reading()
    assert told(asked, few, folder) == asked["told"]


def test_damaged_files_are_made_anew(asked, few, kept_fits, tmp_path, no_reading):
    damages = [lambda data: b"", lambda data: data[:-3], lambda data: b"x" * 99]
    folder = tmp_path / "fits"
    shutil.copytree(kept_fits[0], folder)
    files = sorted(folder.rglob("*.pickle"))
    assert len(files) >= len(damages)
    for path, damage in zip(files, itertools.cycle(damages), strict=False):
        path.write_bytes(damage(path.read_bytes()))
    assert told(asked, few, folder) == asked["told"]
    no_reading()
    assert told(asked, few, folder) == asked["told"]


def test_another_database_has_fits_of_its_own(asked, few, tmp_path, no_reading):
    own = tmp_path / "own.sqlite"
    shutil.copyfile(few, own)
    folder = tmp_path / "fits"
    told(asked, own, folder)
    os.utime(own, ns=(1, 1))  # somebody has written it
    no_reading()
    with pytest.raises(AssertionError, match="whole database"):
        told(asked, own, folder)


def test_other_constants_have_fits_of_their_own(tmp_path):
    names = set()
    for decides in ("one", "other"):
        kept.KeptFits(tmp_path, [SHIPPED], decides)("name", lambda: 1)
        names |= set(os.listdir(tmp_path))
    assert len(names) == 2


def test_the_folders_that_were_used_last_are_kept(tmp_path):
    """So the shipped database's, which most runs use, stays however many others are made."""
    for number in range(kept.MOST + 3):
        assert kept.KeptFits(tmp_path, [], number)("name", lambda n=number: n) == number
        assert kept.KeptFits(tmp_path, [], 0)("name", lambda: "anew") == 0
    assert len(os.listdir(tmp_path)) == kept.MOST
    assert kept.KeptFits(tmp_path, [], kept.MOST + 2)("name", lambda: "anew") == kept.MOST + 2
    assert kept.KeptFits(tmp_path, [], 1)("name", lambda: "anew") == "anew"


def test_a_folder_that_may_only_be_read_serves_as_well(tmp_path, monkeypatch):
    assert kept.KeptFits(tmp_path, [])("name", lambda: "kept") == "kept"

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", refuse)
    assert kept.KeptFits(tmp_path, [])("name", lambda: "anew") == "kept"


def test_a_folder_that_cannot_be_made_costs_only_time(tmp_path):
    (tmp_path / "file").touch()
    keep = kept.KeptFits(tmp_path / "file" / "fits", [])
    assert [keep("name", lambda n=n: n) for n in (1, 2)] == [1, 2]


def test_nobody_else_may_read_or_write_them(tmp_path):
    kept.KeptFits(tmp_path / "fits", [])("name", lambda: 1)
    (folder,) = (tmp_path / "fits").iterdir()
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_what_somebody_else_made_is_not_read(tmp_path):
    keep = kept.KeptFits(tmp_path, [])
    assert keep("name", lambda: "mine") == "mine"
    (folder,) = tmp_path.iterdir()
    os.chown(folder, 65534, 65534)
    assert keep("name", lambda: "anew") == "anew"
