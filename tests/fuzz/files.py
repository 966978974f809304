"""Why it exists: users hand us cluster files, traces, databases of kernel times and more (handed.py), and torch
brings libraries (libraries.py). Whatever is in one, it is used, or refused in our words: no other exception, no
endless work. Here good files are changed at random, several mistakes at a time (changes.py).

    .venv/bin/python -m tests.fuzz.files [--seconds 600] [--seed S] [KIND...]

A cluster that is accepted must also carry an all-reduce; a trace that is accepted must be comparable
with another one; of a database all that is read of one is read (tests/kernels/test_damage.py).
"""

import argparse
import importlib
import json
import random
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from phantora_ns.calibrate.nccl_log import LogError
from phantora_ns.config import load_cluster
from phantora_ns.config.toml_table import ConfigError
from phantora_ns.kernels.binary.fatbin import FatbinError
from phantora_ns.kernels.database.database import Database, DatabaseError
from phantora_ns.launch.errors import LaunchError, UsageError
from phantora_ns.page.compare import CompareError
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology
from phantora_ns.trace import diff, diff_text
from phantora_ns.trace.kineto import TraceError, read_trace
from tests.fuzz import handed
from tests.fuzz.changes import (
    change_bytes,
    change_json,
    change_json_lines,
    change_toml,
    change_words,
)
from tests.fuzz.libraries import libraries, use_library

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 20
"""For one file. Most take milliseconds."""
MOST_CHANGES = 4
ALL_REDUCE, BYTES = 0, 1 << 20
CELLS = (
    None,
    -1,
    0,
    2**62,
    -(2**63),
    1.5,
    float("inf"),
    "x",
    "",
    b"",
    b"\xff",
    b"\x81\x01\x02",
    b"\x91" * 600,
)


class Kind(NamedTuple):
    """`good`: the contents of files that are fine. `change` makes one mistake. `use` raises what is in `refusals`, or
    uses the file to its end."""

    suffix: str
    good: Callable[[], list[bytes]]
    change: Callable[[random.Random, bytes], bytes]
    use: Callable[[Path], None]
    refusals: tuple[type[Exception], ...]


class TooLong(BaseException):
    """A file took longer than LONGEST_S."""


# ---- cluster files ----


def clusters() -> list[bytes]:
    graph = '[[fault]]\nlink = "node-0/nic-0 -> rail-0"\nbandwidth = "25%"\nfrom = "1 ms"\n'
    graph += '[[fault]]\ngpu = "node-0/gpu-1"\nspeed = "90%"\n[nccl]\npxn = false\n'
    shipped = [path.read_text() for path in sorted((ROOT / "topologies").glob("*.toml"))]
    with_faults = (ROOT / "topologies/h200-rail.toml").read_text() + graph
    return [text.encode() for text in (*shipped, with_faults)]


def use_cluster(path: Path) -> None:
    """One all-reduce of up to two GPUs on each of up to two nodes."""
    cluster = load_cluster(str(path))
    topology = Topology.build(cluster)
    flows = FlowSimulator(topology.capacities)
    for change in topology.capacity_changes():
        flows.set_capacity(*change)
    gpus = [
        node * cluster.gpus_per_node + gpu
        for node in range(min(2, cluster.nodes))
        for gpu in range(min(2, cluster.gpus_per_node))
    ]
    plan = CollectiveModel(topology, cluster.gpu_model).plan(ALL_REDUCE, gpus, BYTES)
    ends = [
        flows.completion_ns(
            flows.add(plan.before_ns, flow.links, flow.size_bytes, flow.rate_cap, flow.count)
        )
        for flow in plan.flows
    ]
    whole = max(ends, default=0) + plan.after_ns
    assert isinstance(whole, int) and whole >= 0, f"an all-reduce takes {whole} ns"


# ---- traces ----


def traces() -> list[bytes]:
    """Two steps, with operators, launches, a copy and a collective."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, thread: int, **args: Any) -> None:
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": ts,
                "dur": dur,
                "args": args,
            }
        )

    for step in range(2):
        t = 1000.0 * step
        add("user_annotation", f"ProfilerStep#{step}", t, 990.5, 1)
        add(
            "cpu_op",
            "aten::mm",
            t + 10,
            30,
            1,
            **{"External id": 10 * step + 1, "Input Dims": [[64, 64], [64, 64]]},
        )
        add(
            "cuda_runtime",
            "cudaLaunchKernel",
            t + 15,
            5,
            1,
            correlation=10 * step + 1,
            **{"External id": 10 * step + 1},
        )
        add("kernel", "sm90_gemm", t + 40, 200.25, 7, stream=7, correlation=10 * step + 1, grid=[8, 1, 1],
            **{"External id": 10 * step + 1})  # fmt: skip
        add("cuda_runtime", "cudaMemcpyAsync", t + 50, 5, 1, correlation=10 * step + 2)
        add(
            "gpu_memcpy",
            "Memcpy HtoD",
            t + 300,
            20,
            7,
            stream=7,
            correlation=10 * step + 2,
            bytes=4096,
        )
        add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", t + 320, 99.75, 8, stream=8,
            **{"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 8,
               "dtype": "Float"})  # fmt: skip
    top = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 0, "world_size": 8},
        "traceEvents": events,
    }
    return [json.dumps(top).encode()]


def use_trace(path: Path) -> None:
    found = read_trace(path)
    good = path.with_name("good.json")
    for by in ("operator", "kernel", "family"):
        result = diff.diff(read_trace(good), found, by)
        json.dumps(diff.as_json(result))
        "\n".join(diff_text.text(result, 10))


# ---- databases ----


def of_the_test(name: str) -> Any:
    """A module of tests/kernels, which is no package."""
    folder = str(ROOT / "tests/kernels")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def databases() -> list[bytes]:
    """Two recordings with something of every kind."""
    recorded = of_the_test("recorded")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("one.sqlite", "two.sqlite")]
        for seed, path in enumerate(paths):
            recorded.varied(path, path.stem, seed)
        return [path.read_bytes() for path in paths]


def change_database(source: random.Random, content: bytes) -> bytes:
    """Bytes of its pages, its length, cells of several rows, its tables."""
    way = source.randrange(10)
    if way < 3 and content:
        changed = bytearray(content)
        for _ in range(source.choice((1, 8, 200))):
            changed[source.randrange(len(changed))] = source.randrange(256)
        return bytes(changed)
    if way == 3:
        return content[: source.randrange(len(content) + 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "database"
        path.write_bytes(content)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute("PRAGMA foreign_keys = 0")
            asked = "SELECT name FROM sqlite_schema WHERE type = 'table'"
            table = source.choice([name for (name,) in connection.execute(asked)])
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            column = source.choice(columns)
            if way == 4:
                connection.execute(source.choice((
                    f"DROP TABLE {table}", f"DELETE FROM {table} WHERE abs(random()) % 2",
                    f"ALTER TABLE {table} DROP COLUMN {column}", f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                    f"INSERT OR IGNORE INTO {table} SELECT * FROM {table}", "PRAGMA user_version = 7",
                    "PRAGMA application_id = 7")))  # fmt: skip
            else:
                value = source.choice((*CELLS, source.randbytes(source.choice((1, 9, 600)))))
                connection.execute(
                    f"UPDATE OR IGNORE {table} SET {column} = ? WHERE abs(random()) % ? = 0",
                    (value, source.choice((1, 2, 10))),
                )
        except (sqlite3.Error, IndexError, UnicodeDecodeError):  # it is damaged already
            return content
        finally:
            connection.close()
        return path.read_bytes()


def use_database(path: Path) -> None:
    """All that is read; the first refusal is raised when everything has been tried."""
    refusal = None
    with tempfile.TemporaryDirectory() as folder, Database.open(path) as database:
        for read in of_the_test("test_damage").readers(path, database, Path(folder)):
            try:
                read()
            except DatabaseError as error:
                refusal = refusal or error
                assert path.name in str(error) and "\n" not in str(error), error
    if refusal is not None:
        raise refusal


KINDS = {
    "cluster": Kind(".toml", clusters, change_toml, use_cluster, (ConfigError,)),
    "database": Kind(".sqlite", databases, change_database, use_database, (DatabaseError,)),
    "export": Kind(
        ".jsonl",
        lambda: handed.exports(databases()),
        change_json_lines,
        handed.use_export,
        (DatabaseError,),
    ),
    "hosts": Kind("", lambda: [handed.HOSTS], change_words, handed.use_hosts, (UsageError,)),
    "library": Kind(".so", libraries, change_bytes, use_library, (FatbinError,)),
    "log": Kind(".log", handed.logs, change_words, handed.use_log, (LogError,)),
    "report": Kind(
        ".report", handed.reports, handed.change_report, handed.use_report, (CompareError,)
    ),
    "sweep": Kind(
        ".toml",
        lambda: [handed.SWEEP.encode()],
        handed.change_sweep,
        handed.use_sweep,
        (UsageError,),
    ),
    "trace": Kind(".json", traces, change_json, use_trace, (TraceError,)),
    "values": Kind(
        ".values", handed.values, handed.change_values, handed.use_values, (UsageError, LaunchError)
    ),
}


def wrong_with(kind: Kind, path: Path) -> str | None:
    """Describes what went wrong when a file was read: another exception, a time-out, a poor message. None when it was
    used, or refused as it should be."""

    def give_up(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_S)
    try:
        kind.use(path)
    except kind.refusals as error:
        said = str(error)
        if "\n" in said.strip() or path.name not in said:
            return f"a refusal of several lines, or without the file's name: {said[:300]!r}"
    except TooLong:
        return f"takes longer than {LONGEST_S} s"
    except Exception:
        return traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
    return None


def changed(kind: Kind, source: random.Random, good: list[bytes]) -> bytes:
    """A good file with a few mistakes."""
    content = source.choice(good)
    for _ in range(source.randint(1, MOST_CHANGES)):
        content = kind.change(source, content) or b"\n"
    return content


def search(
    name: str, folder: Path, seed: int, files: float, seconds: float
) -> tuple[int, list[str]]:
    """(how many files were tried, what was wrong with some, each with its number)."""
    kind, wrong, began, number = KINDS[name], [], time.monotonic(), 0
    good = kind.good()
    (folder / f"good{kind.suffix}").write_bytes(good[-1])
    path = folder / f"changed{kind.suffix}"
    while number < files and time.monotonic() - began < seconds and len(wrong) < 10:
        path.write_bytes(changed(kind, random.Random(f"{seed}-{number}"), good))
        found = wrong_with(kind, path)
        if found:
            wrong.append(f"{name} {seed}-{number}: {found}\n{path.read_bytes()[:2000]!r}")
        number += 1
    return number, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Changes files at random, and uses them.")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    names, bad = options.kinds or list(KINDS), 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            share_s = options.seconds / len(names)
            tried, wrong = search(name, Path(folder), options.seed, float("inf"), share_s)
        print(
            "\n".join([*wrong, f"{name}: {tried} files of seed {options.seed}, {len(wrong)} wrong"])
        )
        bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
