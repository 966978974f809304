"""Why it exists: a database may be damaged in any cell. Every reader then either answers or raises
DatabaseError; nothing else reaches a run or the command line."""

import io
import shutil
import sqlite3

import pytest
from recorded import CONTEXT, GRAPH, HOST, gemm, kernel, record

from phantora_ns.config import load_gpu
from phantora_ns.kernels import signature
from phantora_ns.kernels.database import databases, host_table, interchange, listing
from phantora_ns.kernels.database.database import Database, DatabaseError
from phantora_ns.kernels.lookup import KernelTimes

TABLES = (
    *("meta", "texts", "contexts", "runs", "signatures", "samples"),
    *("host_numbers", "host_calls", "host_sites"),
)
VALUES = [None, -1, 2**62, 1.5, float("inf"), "x", b"", b"\xff", b"\x81\x01\x02", b"\x91" * 600]
GPU = load_gpu("h200")


def readers(path, database, folder):
    """Everything that is read from a database, as functions."""
    asked = [
        (0, kernel()),
        (0, kernel(identity=b"z")),
        (0, kernel("_Z1kPd")),
        (1, gemm()),
        (1, gemm(512)),
        (2, GRAPH),
    ]

    def look_up():
        times = KernelTimes(GPU, [database])
        for kind, fields in asked:
            times.lookup(kind, fields)
            times.recorded_elsewhere(kind, fields)

    def hosts():
        found = host_table.read_hosts([database])
        found.costs(GPU.host)
        host_table.write_table(folder / "host.tbl", found, 5)

    return [
        look_up,
        hosts,
        lambda: [database.statistics(signature.encode(*one)) for one in asked],
        lambda: list(listing.signature_lines(database.signatures(), 0)),
        lambda: list(database.observations()),
        lambda: list(listing.run_lines(database)),
        lambda: listing.summary_line(database),
        lambda: list(interchange.export_lines(database)),
        lambda: interchange.export_table(database, io.StringIO()),
        lambda: (database.libraries(), database.libraries(signature.encode(1, gemm()))),
        lambda: list(listing.difference_lines(database, database, 10)),
        lambda: databases.merge(folder / "merged.sqlite", [path]),
    ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return record(
        tmp_path_factory.mktemp("sound") / "sound.sqlite",
        (0, kernel(identity=b"a"), CONTEXT, [1000, 1100]),
        (0, kernel(identity=b"b"), None, [1000, 1050]),
        (1, gemm(), None, [5000]),
        (2, GRAPH, CONTEXT, [900]),
        host=HOST,
        torch="2.11.0",
        configuration="x",
    )


def test_a_sound_file_is_read(sound, tmp_path):
    with Database.open(sound) as database:
        for read in readers(sound, database, tmp_path):
            read()


@pytest.mark.parametrize("table", TABLES)
def test_any_damaged_cell_is_one_kind_of_error(sound, tmp_path, table):
    path = tmp_path / "damaged.sqlite"
    with sqlite3.connect(sound) as connection:
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        row = connection.execute(f"SELECT * FROM {table}").fetchone()
    connection.close()
    where = " AND ".join(f"{column} IS ?" for column in columns)
    made = 0
    for column in columns:
        for value in VALUES:
            shutil.copy(sound, path)
            damage = sqlite3.connect(path)
            damage.execute("PRAGMA synchronous = OFF")
            damage.execute("PRAGMA ignore_check_constraints = 1")
            try:
                with damage:
                    damage.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value, *row))
            except sqlite3.Error:  # the column's own constraint refuses it
                continue
            finally:
                damage.close()
            made += 1
            try:
                with Database.open(path) as database:
                    for read in readers(path, database, tmp_path):
                        try:
                            read()
                        except DatabaseError as error:
                            assert str(path) in str(error) and "\n" not in str(error)
            except DatabaseError as error:
                assert str(path) in str(error) and "\n" not in str(error)
    assert made > 5 * len(columns)
