"""`phantora-ns compare A B [C ...]`: what moved between runs, where, and what differs in their set-up.

Why it exists: two reports differ in hundreds of numbers. People want to know what became slower, where
the step changed, and whether a bound is broken. Rule: every number is one of the reports, or a difference
of two; what a report does not have is not known, never zero. Pure data; compare_text.py and the
page's script show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora_ns.page.answers import parts
from phantora_ns.page.compare_text import text
from phantora_ns.page.render import embedded
from phantora_ns.report.run_report import SchemaError, check_schema

SCHEMA = 1
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_STEP_PARTS = {
    "busy_ns": ("compute", "computing"),
    "exposed_ns": ("exposed", "communication"),
}
_SETUP = (
    "world_size",
    "nodes",
    "gpus_per_node",
    "cluster",
    "software",
    "nccl",
    "host_time.mode",
    "host_time.scale",
    "values.policy",
    "databases",
    "exit_code",
)
UNEXPECTED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What comes of a report with a value of another kind in it."""


class CompareError(Exception):
    """A file that is no report; the text is WHAT; WHERE; WHAT TO DO."""


@dataclass(frozen=True)
class Run:
    """A run to compare. `page`: the content of its page, when the file is a page."""

    name: str
    report: Mapping[str, Any]
    page: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Metric:
    """A number of a report by a name for --fail-if. `kind`: time, bytes, share or count."""

    name: str
    label: str
    kind: str
    read: Callable[[Mapping[str, Any]], float | None]


def _of_ranks(field: str, fold: Callable[[list[int]], float]) -> Callable[..., float | None]:
    def read(report: Mapping[str, Any]) -> float | None:
        found = [rank[field] for rank in report["ranks"] if rank["rank"] is not None]
        known = [value for value in found if value is not None]
        return fold(known) if known and len(known) == len(found) else None

    return read


def _mean(values: list[int]) -> float:
    return round(sum(values) / len(values))


def _of_step(field: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda report: (report.get("step") or {}).get(field)


def _guessed(report: Mapping[str, Any]) -> float | None:
    shares = report["kernel_time_share"]
    return shares.get("guess", 0.0) if shares else None


def _hfu(report: Mapping[str, Any]) -> float | None:
    return (report.get("arithmetic") or {}).get("hfu")


METRICS = (
    Metric("step_time", "step time (mean)", "time", _of_step("mean_ns")),
    Metric("hfu", "FLOP utilisation (HFU)", "share", _hfu),
    Metric("simulated_time", "simulated time in all", "time", lambda r: r["simulated_ns"]),
    Metric("computing", "computing, mean of ranks", "time", _of_ranks("gpu_busy_ns", _mean)),
    Metric("communication", "communicating, mean of ranks", "time", _of_ranks("comm_ns", _mean)),
    Metric("waiting", "of it waiting for others", "time", _of_ranks("comm_wait_ns", _mean)),
    Metric(
        "exposed_communication",
        "exposed communication",
        "time",
        _of_ranks("exposed_comm_ns", _mean),
    ),
    Metric("host_time", "host time, mean of ranks", "time", _of_ranks("host_cpu_ns", _mean)),
    Metric("peak_memory", "peak memory in use", "bytes", _of_ranks("peak_driver_bytes", max)),
    Metric("peak_allocated", "peak allocated", "bytes", _of_ranks("peak_allocated_bytes", max)),
    Metric("peak_reserved", "peak reserved", "bytes", _of_ranks("peak_reserved_bytes", max)),
    Metric("guessed", "GPU time that is guessed", "share", _guessed),
    Metric("unsupported", "unsupported calls", "count", lambda r: len(r["unsupported_calls"])),
    Metric("warnings", "kinds of warnings", "count", lambda r: len(r["warnings"])),
    Metric("wall_time", "real time of the run", "time", lambda r: round(r["wall_s"] * 1e9)),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def load(path: Path) -> Run:
    """The run in a report (`--report`) or a page (`--html`). Raises CompareError."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise CompareError(f"cannot read {path}: {reason}; on the command line") from error
    try:
        page = embedded(content) if content.lstrip().startswith("<") else None
        report = json.loads(content) if page is None else page["report"]
        check_schema(report)
        found = Run(path.stem, report, page)
        _check(found)
    except SchemaError as error:
        what, cure = str(error).split("; ", 1)
        raise CompareError(f"{path} is {what}; on the command line; {cure}") from error
    except UNEXPECTED as error:
        raise CompareError(
            f"{path} is no report; on the command line; give what --report or --html wrote"
        ) from error
    return found


def _check(run: Run) -> None:
    """Raises one of UNEXPECTED where something in it is of another kind than a run writes: what can be
    compared with itself, as a page and as a report, can be compared with others."""
    for other in (run, Run(run.name, run.report)):
        text(compare([run, other]))


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """The comparison of all runs with the first, as JSON data."""
    return {
        "schema": SCHEMA,
        "runs": [
            {"letter": LETTERS[index % len(LETTERS)], "name": run.name, "band": _band(run.report)}
            for index, run in enumerate(runs)
        ],
        "metrics": [
            {"name": metric.name, "label": metric.label, "kind": metric.kind}
            | {"values": [metric.read(run.report) for run in runs]}
            for metric in METRICS
        ],
        "step_parts": _step_parts(runs),
        "kernels": _kernels(runs),
        "setup": _setup(runs),
    }


def _band(report: Mapping[str, Any]) -> list[int] | None:
    band = (report.get("step") or {}).get("band")
    return [band["low_ns"], band["high_ns"]] if band else None


def _step_parts(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Means of a step's parts, the largest change first: by kind when all are pages, else what the
    reports say of their steps; none when one has no steps."""
    if all(run.page is not None and run.page["steps"] for run in runs):
        found = [_by_kind(run.page) for run in runs if run.page is not None]
    else:
        steps = [run.report.get("step") for run in runs]
        if not all(steps):
            return []
        found = [_by_group(step) for step in steps if step is not None]
    keys = {key: None for one in found for key in one}
    rows = [
        {"group": group, "kind": kind, "values": [one.get((group, kind), 0) for one in found]}
        for group, kind in keys
    ]
    return sorted(rows, key=lambda row: -max(abs(v - row["values"][0]) for v in row["values"]))


def _by_kind(page: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """These add up to the mean of the counted steps."""
    counted = set(page["counted_steps"])
    steps = sum(step["number"] in counted for step in page["steps"]) or len(page["steps"])
    return {
        (group, kind): round(ns / steps)
        for group, kinds in parts(page).items()
        for kind, ns in kinds.items()
    }


def _by_group(step: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    found = {key: step[field] for field, key in _STEP_PARTS.items()}
    return found | {("idle", "everything else"): step["mean_ns"] - sum(found.values())}


def _kernels(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """GPU time by class of kernel, mean of ranks over the whole run."""
    found = [run.report.get("kernel_time_ns") for run in runs]
    if not all(found):
        return []
    counts = [max(1, sum(rank["rank"] is not None for rank in run.report["ranks"])) for run in runs]
    names = sorted({name for one in found for name in one or {}})
    rows = [
        {
            "kind": name,
            "values": [
                round(sum((one or {}).get(name, {}).values()) / count)
                for one, count in zip(found, counts, strict=True)
            ],
        }
        for name in names
    ]
    return sorted(rows, key=lambda row: -max(abs(v - row["values"][0]) for v in row["values"]))


def _setup(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the runs were asked for, where it differs."""
    rows = []
    for field in _SETUP:
        values = [_at(run.report, field) for run in runs]
        if all(isinstance(value, dict) for value in values):
            for key in sorted({key for value in values for key in value}):
                _differing(rows, f"{field}.{key}", [value.get(key) for value in values])
        else:
            _differing(rows, field, values)
    return rows


def _differing(rows: list[dict[str, Any]], field: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values):
        rows.append({"field": field, "values": values})


def _at(report: Mapping[str, Any], field: str) -> Any:
    value: Any = report
    for key in field.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
