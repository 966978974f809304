"""Why it exists: fits the few constants of data/gpus/MODEL.toml [nccl] to measurements, and says
how well they predict.

    python -m bench.nccl.fit [MEASUREMENTS.jsonl ...] [--check]

Default: the measurements in bench/nccl/data. Prints the tables to paste, the errors of the model so
fitted, and those of leave-one-size-out and leave-one-GPU-count-out. `--check` fits nothing for the
first part: the errors of the constants as shipped. Errors are those of the whole model
(`CollectiveModel.plan` run through `FlowSimulator`), not of the regression.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy

from phantora_ns.config import load_cluster
from phantora_ns.model.gpu import GpuModel
from phantora_ns.model.nccl import NcclTimes, PairTimes, ProtocolTimes
from phantora_ns.sim._nccl_tuning import PROTOCOL_NAMES, Tuner
from phantora_ns.sim.collectives import KINDS, CollectiveModel
from phantora_ns.sim.flows import FlowSimulator
from phantora_ns.sim.topology import Topology

DATA = Path(__file__).resolve().parent / "data"
RINGS, CHAINS, PAIRS = (
    ("all_reduce", "all_gather", "reduce_scatter"),
    ("broadcast",),
    ("all_to_all", "sendrecv"),
)
# A link carries 370.8 GB/s of payload, of which LL's data is 1/2 and LL128's 120/128.
CEILING = (370.8 / 2, 370.8 * 120 / 128, 370.8)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement: operation, ranks, bytes of the whole buffer, microseconds, and what was
    forced, if anything."""

    op: str
    world: int
    bytes: int
    us: float
    forced: tuple[str, str] | None = None


def read(paths: list[Path]) -> tuple[list[Row], list[Row]]:
    """(rows that the model must predict, rows that only help to fit). The first are graph-captured
    sizes and 1 GB; the others have a forced algorithm."""
    target, forced_rows = [], []
    for path in paths:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("op") not in RINGS + CHAINS + PAIRS:
                continue
            forced = (entry["algo"], entry["proto"]) if entry.get("algo") else None
            row = Row(entry["op"], entry["world"], entry["bytes"], entry["us"], forced)
            if forced:
                forced_rows.append(row)
            elif (
                entry.get("graph") or row.bytes == 1 << 30
            ):  # other sizes, issued one by one, measure the host
                target.append(row)
    return target, forced_rows


def bounded(matrix: numpy.ndarray, wanted: numpy.ndarray, low: list[float]) -> numpy.ndarray:
    """Least squares for matrix @ x = wanted with x[k] >= low[k]. The worst offender is fixed at its
    bound until there is none."""
    found = numpy.array(low)
    free = list(range(matrix.shape[1]))
    while free:
        fixed = [k for k in range(matrix.shape[1]) if k not in free]
        values, *_ = numpy.linalg.lstsq(
            matrix[:, free], wanted - matrix[:, fixed] @ found[fixed], rcond=None
        )
        worst = int(numpy.argmin(values - found[free]))
        if values[worst] >= found[free][worst]:
            found[free] = values
            return found
        free.pop(worst)
    return found


def regress(
    features: list[list[float]], times: list[float], ceilings: dict[int, float]
) -> list[float]:
    """Least squares on relative errors; no coefficient below 0, and coefficient k at least 1 /
    (1000 * ceilings[k])."""
    matrix = numpy.array(features) / numpy.array(times)[:, None]
    low = [1 / (1000 * ceilings[k]) if k in ceilings else 0.0 for k in range(matrix.shape[1])]
    return bounded(matrix, numpy.ones(len(times)), low).tolist()


def _us(value: float) -> int:
    return round(1000 * value)


def _rate(inverse: float) -> float:
    return min(1 / (1000 * inverse), 1e5) if inverse > 0 else 1e5


def fit(
    target: list[Row], forced_rows: list[Row], gpu: GpuModel, model: CollectiveModel
) -> NcclTimes:
    """The constants that fit the rows best."""
    tuners = {}

    def chosen(row: Row) -> str:
        tuner = tuners.get(row.world)
        if tuner is None:
            tuner = tuners[row.world] = Tuner(gpu.nccl.constants, row.world, 1, 1, 370.8, 0.0)
        choice = tuner.choose(row.op, row.bytes)
        return f"{choice.algorithm} {PROTOCOL_NAMES[choice.protocol]}"

    protocols = []
    for number, name in enumerate(PROTOCOL_NAMES):
        rows = [row for row in target if row.op in RINGS and chosen(row) == f"ring {name}"]
        if name == "LL128":  # NCCL rarely picks it by itself inside one server
            rows += [
                row
                for row in forced_rows
                if row.forced == ("Ring", name) and 1 << 18 <= row.bytes <= 1 << 26
            ]
        features = []
        for row in rows:
            passes = 2 if row.op == "all_reduce" else 1
            steps = passes * (row.world - 1)
            features.append([1, steps, steps / row.world * row.bytes, row.bytes / row.world])
        start, step, wire, own = regress(features, [row.us for row in rows], {2: CEILING[number]})
        rows = [row for row in target if row.op in CHAINS and chosen(row) == f"ring {name}"]
        chain_start, chain_step = start, step
        if len(rows) >= 4:
            features = [[1, row.world - 1, row.bytes] for row in rows]
            chain_start, chain_step, _ = regress(
                features, [row.us for row in rows], {2: _rate(wire)}
            )
        rows = [row for row in forced_rows if row.forced == ("Tree", name) and row.world > 2]
        features = [[1, 2 * (row.world - 1), row.bytes] for row in rows]
        tree_start, tree_step, tree = regress(features, [row.us for row in rows], {})
        protocols.append(
            ProtocolTimes(
                _us(start),
                _us(step),
                _us(chain_start),
                _us(chain_step),
                _us(tree_start),
                _us(tree_step),
                _rate(wire),
                _rate(own),
                _rate(tree),
            )
        )
    pairs = fit_pairs(target, gpu, tuners)
    return NcclTimes(tuple(protocols), pairs, gpu.nccl.local, gpu.nccl.constants)


def fit_pairs(target: list[Row], gpu: GpuModel, tuners: dict[int, Tuner]) -> PairTimes:
    """Grouped sends and receives: the constants of PairTimes.

    Rates limit each other (the least counts), so those of Simple are tried over a grid and the rest
    follows linearly.
    """

    def message(row: Row) -> tuple[int, int]:
        return (row.bytes, 1) if row.op == "sendrecv" else (row.bytes // row.world, row.world - 1)

    choices = {
        row: tuners[row.world].choose_pair(message(row)[0]) for row in target if row.op in PAIRS
    }
    short = [row for row, choice in choices.items() if choice.protocol == 0]
    long = [row for row, choice in choices.items() if choice.protocol == 2]
    features = [[1, math.log2(row.world), message(row)[0] / choices[row].channels] for row in short]
    ll_start, ll_doubling, ll_channel = regress(features, [row.us for row in short], {})
    best = None
    times = numpy.array([row.us for row in long])
    lines = (
        numpy.array([[1, math.log2(row.world), choices[row].chunk_bytes] for row in long])
        / times[:, None]
    )
    for channel in numpy.arange(18.0, 24.01, 0.25):
        for whole in numpy.arange(340.0, 370.01, 5.0):
            for spread in numpy.arange(290.0, 350.01, 5.0):
                bytes_us = (
                    numpy.array(
                        [
                            max(
                                message(row)[0] / choices[row].channels / channel,
                                message(row)[0]
                                * message(row)[1]
                                / (whole if message(row)[1] == 1 else spread),
                            )
                            for row in long
                        ]
                    )
                    / 1000
                )
                rest = 1 - bytes_us / times
                found = bounded(lines, rest, [0.0, 0.0, 0.0])
                error = float(numpy.sum((lines @ found - rest) ** 2))
                if best is None or error < best[0]:
                    best = (error, channel, whole, spread, found)
    _, channel, whole, spread, (start, doubling, fill) = best
    return PairTimes(
        _us(start),
        _us(doubling),
        _us(ll_start),
        _us(ll_doubling),
        _rate(ll_channel),
        float(channel),
        float(whole),
        float(spread),
        _rate(fill),
    )


def predict(row: Row, model: CollectiveModel) -> float:
    """Microseconds of the row's operation, nothing else running."""
    gpus = tuple(range(row.world))
    if row.op == "sendrecv":
        plan = model.plan_pairs([(gpu, (gpu + 1) % row.world, row.bytes) for gpu in gpus])
    else:
        count = (
            row.bytes // row.world
            if row.op in ("all_gather", "reduce_scatter", "all_to_all")
            else row.bytes
        )
        plan = model.plan(KINDS.index(row.op), gpus, count)
    flows = FlowSimulator(model.topology.capacities)
    handles = [
        flows.add(0, flow.links, flow.size_bytes, flow.rate_cap)
        for flow in plan.flows
        for _ in range(flow.count)
    ]
    return (
        plan.before_ns + max(map(flows.completion_ns, handles), default=0) + plan.after_ns
    ) / 1000


def with_times(model: CollectiveModel, times: NcclTimes) -> CollectiveModel:
    """The model on other constants."""
    return CollectiveModel(model.topology, dataclasses.replace(model.gpu, nccl=times))


def errors(rows: list[Row], model: CollectiveModel) -> list[float]:
    """Signed relative error of each row."""
    return [predict(row, model) / row.us - 1 for row in rows]


def summary(title: str, found: list[float]) -> None:
    size = numpy.abs(found)
    print(
        f"{title:32} n {len(found):3}  median {numpy.median(size):6.1%}  p95 {numpy.quantile(size, 0.95):6.1%}"
        f"  worst {size.max():6.1%}  bias {numpy.mean(found):+6.1%}"
    )


def report(rows: list[Row], found: list[float], title: str) -> None:
    summary(title, found)
    groups = defaultdict(list)
    for row, error in zip(rows, found):
        groups[row.op].append(error)
    for name, part in groups.items():
        summary(f"  {name}", part)


def leave_out(target, forced_rows, gpu, model, key, title) -> None:
    """Fits without each value of `key` in turn and predicts the rows left out."""
    found, rows = [], []
    for value in sorted({key(row) for row in target}):
        inside = [row for row in target if key(row) != value]
        outside = [row for row in target if key(row) == value]
        times = fit(inside, [row for row in forced_rows if key(row) != value], gpu, model)
        found += errors(outside, with_times(model, times))
        rows += outside
    report(rows, found, title)


def toml(times: NcclTimes) -> str:
    """The tables as the GPU's data file has them."""
    lines = []
    for name, part in zip(("ll", "ll128", "simple"), times.protocols):
        lines += [f"[nccl.{name}]"]
        lines += [
            f'{key} = "{getattr(part, key + "_ns") / 1000:.3g} us"'
            for key in ("start", "step", "chain_start", "chain_step", "tree_start", "tree_step")
        ]
        lines += [
            f'bandwidth = "{part.bytes_per_ns:.4g} GB/s"',
            f'copy_bandwidth = "{part.copy_bytes_per_ns:.4g} GB/s"',
            f'tree_bandwidth = "{part.tree_bytes_per_ns:.4g} GB/s"',
            "",
        ]
    part = times.pairs
    lines += ["[nccl.pairs]"]
    lines += [
        f'{key} = "{getattr(part, key + "_ns") / 1000:.3g} us"'
        for key in ("start", "doubling", "ll_start", "ll_doubling")
    ]
    lines += [
        f'{name}bandwidth = "{getattr(part, name + "bytes_per_ns"):.4g} GB/s"'
        for name in ("ll_channel_", "channel_", "", "spread_", "fill_")
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measurements", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--rows", action="store_true", help="print every row's error")
    arguments = parser.parse_args()
    target, forced_rows = read(arguments.measurements or sorted(DATA.glob("*.jsonl")))
    cluster = load_cluster("h200-1x8")
    gpu = cluster.gpu_model
    model = CollectiveModel(Topology.build(cluster), gpu)
    if arguments.check:
        title = "as shipped"
    else:
        times = fit(target, forced_rows, gpu, model)
        print(toml(times), end="\n\n")
        title, model = "fitted to all", with_times(model, times)
    found = errors(target, model)
    report(target, found, title)
    if arguments.rows:
        for row, error in zip(target, found):
            print(f"    {row.op:14} {row.world} {row.bytes:11} {row.us:9.2f} us  {error:+6.1%}")
    if not arguments.check:
        leave_out(target, forced_rows, gpu, model, lambda row: row.bytes, "leave one size out")
        leave_out(target, forced_rows, gpu, model, lambda row: row.world, "leave one GPU count out")


if __name__ == "__main__":
    main()
