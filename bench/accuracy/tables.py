"""The comparison as text: for a terminal while it runs, and as the generated part of
docs/accuracy.md.

Why it exists: the same rows are read in both places, and a page that is written by hand does not
follow the numbers.
"""

from __future__ import annotations

from pathlib import Path

from bench.accuracy.configs import SETS
from bench.accuracy.rows import coverage, equal_peaks, sources, step_ns, verdicts

COLUMNS = "{:24s} {:>1s} {:4s} {:>9s} {:>6s} {:>9s} {:>7s} {:>6s} {:>6s} {:>17s} {:>17s}  {}"
HEADER = COLUMNS.format(
    "configuration",
    "n",
    "set",
    "real ms",
    "spread",
    "sim. ms",
    "error",
    "issue",
    "error",
    "peak allocated",
    "peak reserved",
    "compute / exposed / host / queued ms, real | simulated; kernel times from",
)
LEGEND = """\
spread: standard deviation of the real steps over their median; issue: the part of the real step
that passed until the host had issued it, and how far the simulated host is from that; peaks:
simulated minus real on the rank where it is most, and how many more differ; parts of rank 0's step
by its traces (the real one of a step of its own, which the profiler lengthens); kernel times: share
of GPU time"""
SHOWN_PARTS = ("compute_ns", "exposed_ns", "idle_host_ns", "idle_queued_ns")


def memory_text(differences: list | None) -> str:
    """ "equal", or the largest difference with its rank, and how many other ranks differ; "-" when
    it was not compared."""
    if differences is None:
        return "-"
    if not differences:
        return "equal"
    rank, largest = max(differences, key=lambda found: (abs(found[1]), -found[0]))
    return f"{largest:+,} r{rank}" + (f" +{len(differences) - 1}" if len(differences) > 1 else "")


def issue_texts(row: dict) -> tuple[str, str]:
    """The part of the real step that the host took to issue it, and the simulated host's error; ""
    where not recorded."""
    if not row["real_issue_s"]:
        return "", ""
    simulated = row["simulated_issue_s"]
    return (
        f"{row['real_issue_s'] / row['real_s']:.0%}",
        "" if simulated is None else f"{simulated / row['real_issue_s'] - 1:+.0%}",
    )


def parts_text(parts: dict | None) -> str:
    """Milliseconds of the step's parts, "-" without a trace."""
    return "-" if parts is None else " / ".join(f"{parts[name] / 1e6:.1f}" for name in SHOWN_PARTS)


def shares_text(shares: dict | None, least: float = 0.005) -> str:
    """Sources of kernel times with their share, the largest first; guesses always."""
    kept = {
        name: share for name, share in (shares or {}).items() if share >= least or name == "guess"
    }
    return ", ".join(
        f"{share:.0%} {name}" if share >= least else f"{share:.1%} {name}"
        for name, share in sorted(kept.items(), key=lambda item: -item[1])
    )


def band_text(row: dict) -> str:
    """The simulated step's band in ms, at the scale of the job's own step; "-" without one."""
    step = row.get("step")
    if not step or not step["band"]:
        return "-"
    scale = row["simulated_s"] * 1e3 / step_ns(step)
    return "-".join(f"{step['band'][end] * scale:.4g}" for end in ("low_ns", "high_ns"))


def row_text(row: dict) -> str:
    """The row for a terminal: real, simulated and error first, then memory, then what explains the
    error."""
    issue = issue_texts(row)
    return COLUMNS.format(
        row["name"],
        str(row["gpus"]),
        row["set"][:4],
        f"{row['real_s'] * 1e3:.2f}",
        f"{row['spread']:.1%}",
        f"{row['simulated_s'] * 1e3:.2f}",
        f"{row['error']:+.1%}",
        *issue,
        memory_text(row["allocated_unequal"]),
        memory_text(row["reserved_unequal"]),
        f"{parts_text(row['real_parts'])} | {parts_text(row['simulated_parts'])}; "
        f"{shares_text(row['kernel_time_share'])}",
    )


def summary(rows: list[dict]) -> list[str]:
    """The sums against the bars, set by set, and how many peaks are equal. Empty without rows."""
    lines = []
    for verdict in verdicts(rows):
        judged = (
            "no bar"
            if verdict["met"] is None
            else f"bar: {verdict['bars']}: {'met' if verdict['met'] else 'NOT met'}"
        )
        lines.append(
            f"{verdict['set']}, {verdict['kind']} runs ({verdict['runs']}): mean absolute error "
            f"{verdict['mean']:.1%}, worst {verdict['worst']:.1%}, signed mean "
            f"{verdict['signed']:+.1%}, {verdict['within']} within the real steps ({judged})"
        )
    for name in SETS:
        found = coverage([row for row in rows if row["set"] == name])
        if found:
            lines.append(
                f"{name}, bands: {found['inside']} of {found['runs']} real runs inside; from low "
                f"to high {found['width']:.1%} of the step in the mean, "
                f"{found['width'] / found['error']:.1f} times the mean error"
            )
    if rows:
        compared = [row for row in rows if row["allocated_unequal"] is not None]
        if compared:
            allocated, reserved = equal_peaks(compared)
            lines.append(
                f"runs whose peak memory is equal on every rank: allocated {allocated} of {len(compared)}, "
                f"reserved {reserved} of {len(compared)}"
            )
        lines.append("kernel times from, mean over runs: " + shares_text(sources(rows), 0.001))
    return lines


def markdown(run: dict) -> list[str]:
    """The generated section for one set of rows (store.py): tables by set, sums, and where the
    traced steps differ."""
    rows = run["rows"]
    options = ", ".join(
        f"{name} {value}" for name, value in run["options"].items() if value is not None
    )
    changed = " with changes" if run["changed"] else ""
    lines = [f"Simulated on {run['date']} at commit {run['commit'][:12]}{changed}; {options}.", ""]
    lines += [f"- {line}" for line in summary(rows)]
    for name in ("evaluation", "calibration"):
        kept = [row for row in rows if row["set"] == name]
        if kept:
            lines += ["", f"**{name.capitalize()}** ({len(kept)} runs)", ""] + _table(kept)
    traced = [row for row in rows if row["difference"]]
    if traced:
        lines += [
            "",
            "Where the traced steps differ (% of the real step; kernel families, exposed communication, idle):",
            "",
        ]
        lines += _differences(traced)
    return lines


def _head(*names: str) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _table(rows: list[dict]) -> list[str]:
    lines = _head(
        "configuration",
        "GPUs",
        "kind",
        "real ms",
        "least to most",
        "simulated ms",
        "band",
        "error",
        "allocated",
        "reserved",
        "parts, real",
        "parts, simulated",
        "kernel times",
    )
    for row in rows:
        lines.append(
            "| "
            + " | ".join(
                (
                    row["name"],
                    str(row["gpus"]),
                    row["kind"],
                    f"{row['real_s'] * 1e3:.2f}",
                    f"{row['real_least_s'] * 1e3:.4g}-{row['real_most_s'] * 1e3:.4g}",
                    f"{row['simulated_s'] * 1e3:.2f}",
                    band_text(row),
                    f"{row['error']:+.1%}",
                    memory_text(row["allocated_unequal"]),
                    memory_text(row["reserved_unequal"]),
                    parts_text(row["real_parts"]),
                    parts_text(row["simulated_parts"]),
                    shares_text(row["kernel_time_share"]),
                )
            )
            + " |"
        )
    return lines


def _differences(rows: list[dict], most: int = 7) -> list[str]:
    lines = _head(
        "configuration", "set", "real trace ms", "simulated trace ms", "difference", "of which"
    )
    for row in rows:
        found = row["difference"]
        largest = sorted(found["rows"], key=lambda item: -abs(item["contribution"]))
        kept = [item for item in largest[:most] if abs(item["contribution"]) >= 0.001]
        rest = found["total"] - sum(item["contribution"] for item in kept)
        named = (
            ", ".join(f"{item['label']} {item['contribution']:+.1%}" for item in kept)
            + f", the rest {rest:+.1%}"
        )
        lines.append(
            f"| {row['name']} | {row['set']} | {found['real_step_ns'] / 1e6:.2f} | "
            f"{found['simulated_step_ns'] / 1e6:.2f} | {found['total']:+.1%} | {named} |"
        )
    return lines


def replace_section(path: Path, name: str, lines: list[str]) -> None:
    """Puts `lines` between the page's markers `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

    Raises ValueError when the page has no such pair of markers.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = path.read_text()
    head, found, rest = page.partition(begin)
    _old, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path}: no section {begin} ... {end}")
    path.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")
