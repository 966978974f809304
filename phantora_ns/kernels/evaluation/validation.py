"""What `phantora-ns kernels validate` prints: the error of fitted and analytic times on
configurations left out of the fit.

Why it exists: a model's error belongs beside the model. A file may be a database or a Kineto trace
of real steps. A database's runs each belong to a configuration; a trace is a configuration by itself.
evaluation/heldout.py leaves out and counts; this file reads and prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from phantora_ns.compressed import SUFFIXES, existing
from phantora_ns.kernels import signature
from phantora_ns.kernels.database.database import Database
from phantora_ns.kernels.database.records import Observation
from phantora_ns.kernels.evaluation import heldout
from phantora_ns.kernels.evaluation.trace_launches import launches, observations
from phantora_ns.kernels.lookup import KernelTimes

# Folder beside the one of the traces: shapes of the same steps, recorded by bench/kernels/shapes.py.
SHAPES = "shapes"


class ValidationError(ValueError):
    """Files that cannot be judged; str() says which and why."""


def is_trace(path: Path) -> bool:
    """Whether a file's name is a trace's."""
    return path.name.endswith(tuple(f".json{suffix}" for suffix in SUFFIXES))


def read(path: Path) -> tuple[str | None, list[Observation]]:
    """(GPU model, observations) of a database, or (None, observations) of a trace, which does not
    name one of our GPU models.

    Raises DatabaseError, TraceError or OSError.
    """
    if is_trace(path):
        name = path.name.partition(".json")[0]
        shapes = existing(path.parent.parent / SHAPES / f"{name}.json")
        return None, observations(name, launches(path, shapes=shapes))
    with Database.open(path) as database:
        return database.gpu, list(database.observations())


def lines(
    paths: Iterable[Path],
    gpu: str | None = None,
    judge: Iterable[Path] = (),
    by_configuration: bool = False,
    worst: int = 0,
) -> list[str]:
    """The table, by family (or by configuration). Each configuration of the files is left out in
    turn. With `judge`, those files are predicted from all of the others instead.

    `gpu`: the GPU model of the traces (default: that of the databases, else h200). Raises
    ValidationError, ConfigError, DatabaseError, TraceError, OSError.
    """
    known, judged = ([read(path) for path in files] for files in (paths, judge))
    models = {model for model, _ in [*known, *judged] if model is not None} | (
        {gpu} if gpu else set()
    )
    if len(models) > 1:
        raise ValidationError(
            f"times of {' and '.join(sorted(models))} cannot be judged together; name files of one GPU model"
        )
    times = KernelTimes(next(iter(models), "h200"))
    fitted = [s for _, found in known for s in found]
    configurations = {s.configuration for s in fitted}
    if not judged and len(configurations) < 2:
        raise ValidationError(
            f"{len(configurations)} configurations leave none to judge; name files with at least two"
        )
    rows = heldout.leave_out(
        fitted,
        times.rates,
        times.estimate,
        [s for _, found in judged for s in found] if judged else None,
    )
    if not rows:
        raise ValidationError(
            "nothing to judge: what one configuration launches, the others have measured exactly"
        )
    result = heldout.table(rows, by_configuration)
    if worst:
        heads = ("measured us", "count", "fitted", "analytic", "expected")
        result += [
            "",
            f"{'configuration':<24}" + "".join(f"{h:>12}" for h in heads) + "  signature",
        ]
    for row in sorted(
        rows, key=lambda r: -abs(r.fitted_ns - r.observation.median_ns) * r.observation.count
    )[:worst]:
        real, expected = row.observation.median_ns, "-" if row.error is None else f"{row.error:.1%}"
        result.append(
            f"{row.observation.configuration[:23]:<24}{real / 1e3:>12.1f}{row.observation.count:>12}"
            f"{row.fitted_ns / real - 1:>+12.1%}{row.analytic_ns / real - 1:>+12.1%}{expected:>12}  "
            f"{signature.describe(row.observation.kind, row.observation.fields)[:160]}"
        )
    return result
