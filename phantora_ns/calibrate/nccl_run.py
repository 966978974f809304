"""`phantora-ns calibrate nccl`: from logs to a cluster file and the errors that are left.

Why it exists: the steps in order. Rules: errors are those of the file as it is written, read back
and simulated. Every second size is left out of the fit, so that half of the errors are of sizes that
nothing was fitted to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from phantora_ns.calibrate import links
from phantora_ns.calibrate.cluster_file import cluster_text, rate_text, share_text, time_text
from phantora_ns.calibrate.fit import Fitted, chosen_by, fit, with_nvls
from phantora_ns.calibrate.nccl_log import LogError, read_log
from phantora_ns.calibrate.parameters import NIC, Name, Parameter
from phantora_ns.calibrate.samples import Measured, Sample, measured, split
from phantora_ns.calibrate.simulate import Simulated, Simulator
from phantora_ns.config import load_cluster
from phantora_ns.config.changes import Changes
from phantora_ns.config.nccl import nccl_constants, nearest_version
from phantora_ns.config.toml_table import read_toml
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.nccl import NcclConstants, NcclVersion
from phantora_ns.whole_file import replacing

_MODELS = {"H200": "h200", "H100": "h100", "B200": "b200", "A100": "a100", "L40S": "l40s"}
_OTHERS = ("PCIe", "PCIE", "NVL", "40GB")
"""Variants that are not what is modelled under the name."""
_SAID = 0.8
"""A parameter is written if the logs leave at most this share of the prior's uncertainty."""
_MOVED = 0.02
_FULL = 0.995
"""Share of a NIC's bandwidth from which on the NIC may be what is wrong."""
_BETTER = 0.9
"""Of the cost: a faster NIC must fit better than by chance."""


@dataclass(frozen=True)
class Calibrated:
    """`text`: the cluster file. `fitted`, `left_out`: what its simulation takes for each sample.
    `before`: the errors of the cluster that the fit began with."""

    text: str
    measured: Measured
    notes: tuple[str, ...]
    rows: tuple[tuple[Parameter, float, float], ...]
    fitted: dict[Sample, Simulated]
    left_out: dict[Sample, Simulated]
    before: str


def calibrate(
    logs: Sequence[Path],
    like: str | None = None,
    settings: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _line: None,
) -> Calibrated:
    """Fits a cluster to logs. `like`: the cluster to start from; None: by the logs' GPUs. `settings`:
    KEY=VALUE changes of it. Raises LogError, ConfigError."""
    said = measured([run for path in logs for run in read_log(path)])
    like = like or _like(said, logs[0])
    start = _load(like, settings, said)
    raised, notes = links.changes(start, said.samples)
    settings = [*settings, *(f"{key}={value}" for key, value in raised.items())]
    start = _load(like, settings, said)
    constants, release = _constants(said, start)
    to_fit, left_out = split(said.samples)
    before = spread(chosen_by(start, constants, said.samples))
    decided = any(setting.startswith("nccl.nvls=") for setting in settings)
    found, nvls = _best(start, constants, to_fit, decided, tell)
    while start.network.kind in ("switch", "rail", "fat-tree") and _at_limit(found):
        nic = f"{links.next_nic(start.network.nic_bytes_per_ns * 1.01):g} Gbit/s"
        faster = [*settings, f"network.nic_bandwidth={nic}"]
        other = _best(_load(like, faster, said), constants, to_fit, decided, tell)
        if other[0].cost > _BETTER * found.cost:
            break
        settings, (found, nvls) = faster, other
        start = _load(like, settings, said)
        notes.append(f"NICs of {nic} fit better than slower ones")
    if start.network.kind != "graph":
        notes += links.slow_nics(start, found.values.get(NIC))
    data = _data(start, settings)
    comments, rows = _enter(data, found, nvls)
    names = _names(logs)
    head = [f"Written by phantora-ns calibrate nccl from {names}, starting from {start.name}.",
            f"GPUs: {said.gpu}. {release}"]  # fmt: skip
    data["description"] = f"{start.description or start.name}, calibrated by nccl-tests"
    simulated = _simulate(cluster_text(data, head, comments), said, constants)
    lists = [{one: simulated[one] for one in part} for part in (to_fit, left_out)]
    for title, part in zip(("Sizes fitted", "Sizes left out"), lists, strict=True):
        if part:
            head.append(f"{title}: {len(part)}, errors {spread(part)}.")
    text = cluster_text(data, head, comments)
    return Calibrated(text, said, (*said.notes, *notes), rows, *lists, f"{start.name}: {before}")


def _at_limit(found: Fitted) -> bool:
    return found.values.get(NIC, 0.0) > _FULL


def _names(logs: Sequence[Path]) -> str:
    names = sorted({path.name for path in logs})
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _like(said: Measured, log: Path) -> str:
    words = said.gpu.replace("-", " ").split()
    model = next((ours for name, ours in _MODELS.items() if name in words), None)
    if model is None or any(other in said.gpu for other in _OTHERS):
        raise LogError(
            f"its GPU {said.gpu!r} is not described; {log}; name the nearest cluster: --like h100-rail"
        )
    return f"{model}-rail" if said.nodes > 1 and model != "l40s" else f"{model}-1x8"


def _load(like: str, settings: Sequence[str], said: Measured) -> Cluster:
    """The cluster to start from, as large as the logs' runs. A file that fixes its size keeps it."""
    changes = Changes(tuple(settings))
    data = _data(load_cluster(like, changes=changes), settings)
    nodes = None if "nodes" in data else said.nodes
    gpus = None if "gpus_per_node" in data else said.gpus_per_node
    cluster = load_cluster(like, nodes, gpus, changes)
    if cluster.nodes < said.nodes or cluster.gpus_per_node < said.gpus_per_node:
        raise LogError(
            f"the logs are of {said.nodes} nodes and {said.gpus_per_node} GPUs in each, and {like} has "
            f"{cluster.nodes} and {cluster.gpus_per_node}; on the command line; give another --like"
        )
    return cluster


def _data(cluster: Cluster, settings: Sequence[str]) -> dict[str, Any]:
    """The cluster's file, changed."""
    path = Path(cluster.file)
    data = read_toml(path)
    Changes(tuple(settings)).apply(data, path)
    return data


def _constants(said: Measured, cluster: Cluster) -> tuple[NcclConstants, str]:
    """What decides NCCL's choices, and what to say of its release."""
    if said.nccl is None:
        return (
            cluster.gpu_model.nccl.constants,
            "The logs do not name NCCL's release; 2.28's choices.",
        )
    version = NcclVersion.parse(said.nccl)
    known = nearest_version(version)
    release = f"NCCL {said.nccl}" + (f", choices of {known}" if known != version else "")
    return nccl_constants(known, cluster.gpu_model.compute_major), release + "."


def _best(
    cluster: Cluster,
    constants: NcclConstants,
    samples: list[Sample],
    decided: bool,
    tell: Callable[[str], None],
) -> tuple[Fitted, bool | None]:
    """The better fit of those without and with NVLink SHARP, and which it is; None: the samples do
    not tell. `decided`: the user has said which."""
    if not decided and cluster.server.interconnect == "nvswitch":
        both = [with_nvls(cluster, on) for on in (False, True)]
        chosen = [chosen_by(one, constants, samples) for one in both]
        if any(simulated.algorithm.startswith("nvls") for simulated in chosen[1].values()):
            fits = [fit(one, constants, samples, tell) for one in both]
            nvls = fits[1].cost < fits[0].cost
            return fits[nvls], nvls
    return fit(cluster, constants, samples, tell), None


def _enter(
    data: dict[str, Any], found: Fitted, nvls: bool | None
) -> tuple[dict[Name, str], tuple[tuple[Parameter, float, float], ...]]:
    """Puts what was fitted into the file's data. Returns comments, and (parameter, value,
    uncertainty) of each."""
    comments: dict[Name, str] = {}
    rows = []
    if nvls is not None:
        data.setdefault("nccl", {})["nvls"] = nvls
        comments["nccl", "nvls"] = "the better of both"
    for parameter in found.parameters:
        value, spread_ = found.values[parameter.name], found.uncertain[parameter.name]
        moved = abs(value / parameter.start - 1) > _MOVED
        if spread_ > _SAID * parameter.prior and not moved:
            continue
        table, key = parameter.name
        text = value_text(parameter, value)
        comments[parameter.name] = (
            f"{value_text(parameter, parameter.start)} before, +-{spread_:.0%}"
        )
        inner = data
        for part in table.split("."):
            inner = inner.setdefault(part, {})
        inner[key] = text
        rows.append((parameter, value, spread_))
    return comments, tuple(rows)


def value_text(parameter: Parameter, value: float) -> str:
    """A parameter's value as the file has it."""
    if parameter.name == NIC:
        return share_text(value)
    return time_text(value) if parameter.is_time else rate_text(value)


def _simulate(text: str, said: Measured, constants: NcclConstants) -> dict[Sample, Simulated]:
    """What the file's cluster takes for each sample."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrated.toml"
        path.write_text(text, encoding="utf-8")
        simulator = Simulator(_load(str(path), (), said), constants)
        return {sample: simulator.run(sample) for sample in said.samples}


def error(sample: Sample, simulated: Simulated) -> float:
    """Relative, of the simulated time."""
    return simulated.ns / (1000 * sample.us) - 1


def spread(part: dict[Sample, Simulated]) -> str:
    """Median and worst error of samples, for people."""
    sizes = [abs(error(*one)) for one in part.items()]
    return f"median {median(sizes):.1%}, worst {max(sizes):.1%}"


# ---- what is printed ----


def lines(done: Calibrated, output: Path | None) -> list[str]:
    """The table for the terminal."""
    said = [
        f"{len(done.measured.samples)} operations and sizes on {done.measured.gpu}, up to "
        f"{done.measured.nodes} nodes with {done.measured.gpus_per_node} GPUs"
    ]
    said += [f"note: {note}" for note in done.notes]
    said += [f"errors before, with {done.before}", "", *_parameters(done.rows)]
    for title, part in (("Fitted", done.fitted), ("Left out of the fit", done.left_out)):
        if part:
            said += ["", f"{title}: {len(part)}, errors {spread(part)}", *_errors(part)]
    said += [
        "",
        f"written: {output}" if output else "nothing written; -o FILE writes a cluster file",
    ]
    return said


def _parameters(rows: Iterable[tuple[Parameter, float, float]]) -> list[str]:
    found = [f"{'parameter':34}{'before':>14}{'fitted':>14}{'+-':>7}"]
    for parameter, value, uncertain in rows:
        before, now = (value_text(parameter, each) for each in (parameter.start, value))
        found.append(f"{'.'.join(parameter.name):34}{before:>14}{now:>14}{uncertain:>7.0%}")
    return found


def _errors(part: dict[Sample, Simulated]) -> list[str]:
    found, heading = [], ""
    for sample, simulated in part.items():
        if heading != (heading := f"{sample.operation}, {sample.place}"):
            own = {
                one: two for one, two in part.items() if f"{one.operation}, {one.place}" == heading
            }
            found += [
                f"  {heading}: errors {spread(own)}",
                f"    {'size':>10}{'measured us':>14}{'least':>11}{'most':>11}{'simulated us':>14}{'error':>9}  NCCL",
            ]
        found.append(
            f"    {size_text(sample.size):>10}{sample.us:>14.2f}{sample.least_us:>11.2f}"
            f"{sample.most_us:>11.2f}{simulated.ns / 1000:>14.2f}{error(sample, simulated):>+9.1%}"
            f"  {simulated.algorithm} {simulated.protocol}"
        )
    return found


def size_text(size: int) -> str:
    """ "64 MiB"; sizes that are rounded to elements and ranks look like whole ones."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= 0.99 * factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} B"


def run_nccl(
    logs: Sequence[Path],
    output: Path | None,
    like: str | None,
    settings: Sequence[str],
    tell: Callable[[str], None],
) -> list[str]:
    """The command. Writes the file if one is named. Raises LogError, ConfigError, OSError."""
    done = calibrate(logs, like, settings, tell)
    if output is not None:
        with replacing(output) as scratch:
            scratch.write_text(done.text, encoding="utf-8")
    return lines(done, output)
