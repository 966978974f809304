"""Why it exists: users hand us cluster files and traces. Whatever is in one, it is used, or refused in our words: no
other exception, no endless work. Here good files are changed at random, several mistakes at a time.

    .venv/bin/python -m tests.fuzz.files [--seconds 600] [--seed S] [KIND...]

A cluster that is accepted must also carry an all-reduce; a trace that is accepted must be comparable with another one.
"""

import argparse
import copy
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from phantora_ns.config import load_cluster
from phantora_ns.config.toml_table import ConfigError
from phantora_ns.sim.collectives import CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology
from phantora_ns.trace import diff, diff_text
from phantora_ns.trace.kineto import TraceError, read_trace

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 20
"""For one file. Most take milliseconds."""
MOST_CHANGES = 4
ALL_REDUCE, BYTES = 0, 1 << 20
ODD: list[Any] = [None, True, "", " ", "x" * 5000, "\0", "-1", "nan", "1e400", [], {}, [[]], {"a": {}}, 0, -1, 1, 2**31,
                  2**63, 2**64, 10**400, -0.0, 1e-320, 1e308, float("inf"), float("nan")]  # fmt: skip
QUANTITIES = ("0", "-1", "1e400", "1e-300", "nan", "inf", "9" * 400, "0.0000001", "1e30", "1_0", "")
UNITS = ("Gbit/s", "Mbit/s", "GB/s", "us", "ms", "ns", "s", "%", "GiB", "", "parsec")


class Kind(NamedTuple):
    """`good`: files that are fine, as text. `change` makes one mistake. `use` raises what is in `refusals`, or uses
    the file to its end."""

    suffix: str
    good: Callable[[], list[str]]
    change: Callable[[random.Random, str], str]
    use: Callable[[Path], None]
    refusals: tuple[type[Exception], ...]


class TooLong(BaseException):
    """A file took longer than LONGEST_S."""


# ---- cluster files ----


def clusters() -> list[str]:
    graph = '[[fault]]\nlink = "node-0/nic-0 -> rail-0"\nbandwidth = "25%"\nfrom = "1 ms"\n'
    graph += '[[fault]]\ngpu = "node-0/gpu-1"\nspeed = "90%"\n[nccl]\npxn = false\n'
    shipped = [path.read_text() for path in sorted((ROOT / "topologies").glob("*.toml"))]
    return shipped + [(ROOT / "topologies/h200-rail.toml").read_text() + graph]


def change_cluster(source: random.Random, text: str) -> str:
    lines = text.splitlines()
    at = source.randrange(len(lines))
    key, equals, value = lines[at].partition("=")
    way = source.randrange(9)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(source.randrange(len(lines)), lines[at])
    elif way == 2:
        lines[at] = "".join(source.sample(lines[at], len(lines[at])))
    elif way == 3:
        lines.insert(at, "".join(chr(source.randrange(1, 0x250)) for _ in range(8)))
    elif way == 4:
        lines.insert(at, "[" * source.choice((1, 2, 3, 5000)) + "nccl]")
    elif equals and way in (5, 6):
        quantity = f"{source.choice(QUANTITIES)} {source.choice(UNITS)}".strip()
        lines[at] = f"{key}= {json.dumps(quantity)}"
    elif equals and way == 7:
        odd = source.choice(ODD)
        lines[at] = f"{key}= {json.dumps(odd) if isinstance(odd, str | list | bool) else odd}"
    elif equals:
        number = "".join(c for c in value if c.isdigit())
        lines[at] = lines[at].replace(number, source.choice(QUANTITIES), 1) if number else key
    return "\n".join(lines)


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


def traces() -> list[str]:
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
    return [json.dumps(top)]


def nodes_of(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value."""
    found: list[tuple[Any, Any]] = []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items):
        found.append((value, key))
        found += nodes_of(inner)
    return found


def change_trace(source: random.Random, text: str) -> str:
    if source.random() < 0.2:
        at = source.randrange(len(text))
        return text[:at] + source.choice(("", "\0", '"', "}", "[" * 5000, text[at:at + 50])) + text[at + 1:]  # fmt: skip
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    there = nodes_of(value)
    if not there:
        return text
    container, key = source.choice(there)
    if source.random() < 0.2:
        del container[key]
    else:
        others = [one[at] for one, at in there]
        container[key] = copy.deepcopy(source.choice(ODD if source.random() < 0.7 else others))
    return json.dumps(value)


def use_trace(path: Path) -> None:
    found = read_trace(path)
    good = path.with_name("good.json")
    for by in ("operator", "kernel", "family"):
        result = diff.diff(read_trace(good), found, by)
        json.dumps(diff.as_json(result))
        "\n".join(diff_text.text(result, 10))


KINDS = {
    "cluster": Kind(".toml", clusters, change_cluster, use_cluster, (ConfigError,)),
    "trace": Kind(".json", traces, change_trace, use_trace, (TraceError,)),
}


def wrong_with(kind: Kind, path: Path) -> str | None:
    """What a file does that it may not, in words; None when it is used or refused."""

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


def changed(kind: Kind, source: random.Random) -> str:
    """A good file with a few mistakes."""
    text = source.choice(kind.good())
    for _ in range(source.randint(1, MOST_CHANGES)):
        text = kind.change(source, text) or "\n"
    return text


def search(
    name: str, folder: Path, seed: int, files: float, seconds: float
) -> tuple[int, list[str]]:
    """(how many files were tried, what was wrong with some, each with its number)."""
    kind, wrong, began, number = KINDS[name], [], time.monotonic(), 0
    (folder / f"good{kind.suffix}").write_text(kind.good()[-1])
    path = folder / f"changed{kind.suffix}"
    while number < files and time.monotonic() - began < seconds and len(wrong) < 10:
        path.write_text(changed(kind, random.Random(f"{seed}-{number}")), errors="surrogatepass")
        found = wrong_with(kind, path)
        if found:
            wrong.append(f"{name} {seed}-{number}: {found}\n{path.read_text()[:2000]}")
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
