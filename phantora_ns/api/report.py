"""`phantora_ns.Report`: a run's report with names, types and units.

Why it exists: the report is JSON (docs/report.md). People who compute with it want attributes, a table for
pandas, and something to look at in a notebook. Rule: every number is one of the report's; what it does not
know is None.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phantora_ns.launch.errors import UsageError
from phantora_ns.report.ended_part import ended_text

if TYPE_CHECKING:
    import pandas

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Rank:
    """What the report says of one rank, with the names that it has there (docs/report.md, `ranks`).
    Names say the unit: `_ns` is nanoseconds of simulated time, `_bytes` is bytes. None: not known."""

    rank: int | None
    """None: a process outside of the ranks that used CUDA."""
    representative: int | None
    """Of a folded job: the rank that stood for this one, which did not run."""
    node: int | None
    device: int | None
    processes: int
    host_cpu_ns: int | None
    gpu_busy_ns: int | None
    gpu_unmeasured_ns: int | None
    comm_ns: int | None
    comm_wait_ns: int | None
    exposed_comm_ns: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_driver_bytes: int | None
    peak_pinned_bytes: int | None
    refused_bytes: int | None
    refused_free_bytes: int | None
    refused_step: int | None
    steps: int | None
    kernel_launches: int | None
    comm_launches: int | None
    messages: int | None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Rank:
        """From an entry of `ranks`."""
        values: dict[str, Any] = {field.name: entry.get(field.name) for field in fields(cls)}
        return cls(**values)


class Report:
    """What a run says about itself: what `--report` writes, with names, types and units.

    Times are integers in nanoseconds of simulated time, sizes integers in bytes. A number that the run
    could not find out is None.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        """From the JSON data of a report."""
        self.data: Mapping[str, Any] = data
        """Everything, as docs/report.md describes it."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """The report in a file that `--report` or `--html` wrote.

        :raises UsageError: the file cannot be read, or is no report
        """
        from phantora_ns.page.compare import CompareError, load

        try:
            return cls(load(Path(path)).report)
        except CompareError as error:
            raise UsageError(str(error)) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what `--report` writes.

        :raises OSError: the file cannot be written
        """
        from phantora_ns.launch.run.results import write_report

        write_report(Path(path), dict(self.data))

    @property
    def exit_code(self) -> int:
        """The exit code of the command; 0 when all went well."""
        return int(self.data["exit_code"])

    @property
    def failed_by(self) -> str | None:
        """Who failed: None, "job", "hub" or "launcher"."""
        failed: str | None = self.data["failed_by"]
        return failed

    @property
    def ended_by(self) -> str | None:
        """The signal by which the user ended the run, such as "SIGINT" for Ctrl-C; None: it ended by
        itself."""
        ended: str | None = self.data.get("ended_by")
        return ended

    @property
    def out_of_memory(self) -> bool:
        """Whether the job failed because a GPU had no room."""
        return bool(self.data.get("out_of_memory"))

    @property
    def world_size(self) -> int:
        """GPUs of the cluster, all servers together."""
        return int(self.data["world_size"])

    @property
    def nodes(self) -> int:
        """Servers of the cluster."""
        return int(self.data["nodes"])

    @property
    def simulated_ns(self) -> int:
        """How long the whole job took on the cluster, start and warm-up included: simulated ns."""
        return int(self.data["simulated_ns"])

    @property
    def wall_s(self) -> float:
        """How long the run took on this machine: real seconds."""
        return float(self.data["wall_s"])

    @property
    def step_time_ns(self) -> int | None:
        """The mean training step after the warm-up, ns. None: the job told no steps."""
        return self._metric("step_time")

    @property
    def step_band_ns(self) -> tuple[int, int] | None:
        """Between these two, in ns, 80 % of real runs are expected. None: there is no evidence for a
        band; `data["step"]["no_band"]` says why."""
        band = (self.data.get("step") or {}).get("band")
        return (band["low_ns"], band["high_ns"]) if band else None

    @property
    def flop_utilisation(self) -> float | None:
        """HFU: the share of the GPUs' peak that the arithmetic of a step took, recomputed parts too, from 0 to
        1. None: not known, or the job told no steps. `data["arithmetic"]` says what is not counted."""
        found: float | None = (self.data.get("arithmetic") or {}).get("hfu")
        return found

    @property
    def model_flop_utilisation(self) -> float | None:
        """MFU: the share of the GPUs' peak that `model_flop` of a step is, from 0 to 1. None: it was not given, or
        `data["arithmetic"]["no_mfu"]` says why it is not known, or the job told no steps."""
        found: float | None = (self.data.get("arithmetic") or {}).get("mfu")
        return found

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most device memory in use, of the rank that used most."""
        return self._metric("peak_memory")

    @property
    def peak_allocated_bytes(self) -> int | None:
        """PyTorch's `max_memory_allocated()`, of the rank with the most."""
        return self._metric("peak_allocated")

    @property
    def peak_reserved_bytes(self) -> int | None:
        """PyTorch's `max_memory_reserved()`, of the rank with the most."""
        return self._metric("peak_reserved")

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """Each rank, in order; processes outside of the ranks that used CUDA follow."""
        return tuple(Rank.of(entry) for entry in self.data["ranks"])

    @property
    def warnings(self) -> Mapping[str, int]:
        """What to check before the result is trusted, with counts."""
        return {**self.data["warnings"]}

    def summary(self) -> list[str]:
        """The lines that the command prints at the end of a run."""
        from phantora_ns.page.compare import UNEXPECTED
        from phantora_ns.report.summary import summary_lines

        try:
            return summary_lines(dict(self.data))
        except KeyError as error:
            return [
                f"no summary: the report has no {error}; another version of phantora-ns wrote it"
            ]
        except UNEXPECTED as error:
            return [f"no summary: the report is damaged: {type(error).__name__}: {error}"]

    def to_pandas(self) -> pandas.DataFrame:
        """The ranks as a table: one row for each, with the columns of `Rank`.

        :raises ImportError: pandas is not installed
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "Report.to_pandas needs pandas, which is not installed; pip install pandas"
            ) from error
        names = [field.name for field in fields(Rank)]
        rows = [[getattr(rank, name) for name in names] for rank in self.ranks]
        table = pandas.DataFrame(rows, columns=names)
        return table.convert_dtypes().set_index("rank")

    def _metric(self, name: str) -> int | None:
        from phantora_ns.page.compare import BY_NAME

        found = BY_NAME[name].read(self.data)
        return None if found is None else int(found)

    def __repr__(self) -> str:
        return f"<phantora_ns.Report: {', '.join(self._facts().values())}>"

    def _facts(self) -> dict[str, str]:
        """The main numbers as text."""
        facts = {"GPUs": f"{self.world_size} GPU{'' if self.world_size == 1 else 's'}"}
        ended = ended_text(self.data)
        if ended is not None:
            facts["exit code"] = ended
        elif self.exit_code:
            facts["exit code"] = f"failed with exit code {self.exit_code}"
        if self.step_time_ns is not None:
            facts["step"] = f"step {self.step_time_ns / 1e6:.4g} ms"
            if self.step_band_ns is not None:
                low, high = self.step_band_ns
                facts["step"] += f" ({low / 1e6:.4g} to {high / 1e6:.4g})"
        if self.peak_memory_bytes is not None:
            facts["memory"] = f"peak memory {self.peak_memory_bytes / GIB:.2f} GiB"
        return facts

    def _repr_html_(self) -> str:
        """What a notebook shows: the main numbers, a row for each rank, and the summary folded."""
        heading = html.escape("; ".join(self._facts().values()))
        columns: dict[str, Callable[[Rank], str]] = {
            "rank": lambda rank: "–" if rank.rank is None else str(rank.rank),
            "computing, ms": lambda rank: _scaled(rank.gpu_busy_ns, 1e6),
            "communicating, ms": lambda rank: _scaled(rank.comm_ns, 1e6),
            "exposed, ms": lambda rank: _scaled(rank.exposed_comm_ns, 1e6),
            "peak allocated, GiB": lambda rank: _scaled(rank.peak_allocated_bytes, GIB),
            "peak in use, GiB": lambda rank: _scaled(rank.peak_driver_bytes, GIB),
        }
        head = "".join(f"<th>{name}</th>" for name in columns)
        shown = self.ranks[:SHOWN_RANKS]
        rows = "".join(
            "<tr>" + "".join(f"<td>{show(rank)}</td>" for show in columns.values()) + "</tr>"
            for rank in shown
        )
        left = len(self.ranks) - len(shown)
        more = f"<p>{left} more ranks are in <code>ranks</code>.</p>" if left else ""
        lines = "<br>".join(html.escape(line) for line in self.summary())
        return (
            f"<p><b>{heading}</b></p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"{more}<details><summary>Summary</summary><p>{lines}</p></details>"
        )


SHOWN_RANKS = 16
"""Rows of the table in a notebook."""


def _scaled(value: int | None, unit: float) -> str:
    return "–" if value is None else f"{value / unit:.2f}"
