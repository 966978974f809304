"""A trace diff as text for a terminal.

Why it exists: diff.py returns the comparison as data. This file decides which rows come first, and in
which units. All times are ms or us per step.
"""

from __future__ import annotations

from phantora_ns.trace.diff import Diff, Row, bus_bandwidth

PARTS = (
    ("step", "step_ns"),
    ("  compute", "compute_ns"),
    ("    beside communication", "hidden_ns"),
    ("  exposed communication", "exposed_ns"),
    ("  idle", "idle_ns"),
    ("    host behind", "idle_host_ns"),
    ("    work queued", "idle_queued_ns"),
    ("    launch not in trace", "idle_unknown_ns"),
)


def text(result: Diff, limit: int = 25) -> list[str]:
    """Lines for a terminal; at most `limit` rows of each table (0: all), the largest differences
    first."""
    lines = [
        f"real       {result.real_path}",
        f"simulated  {result.simulated_path}",
        _steps_line(result),
        "",
    ]
    lines += _totals(result) + [""]
    compute = [row for row in result.rows if row.kind != "communication" and not row.unmatched]
    communication = [
        row for row in result.rows if row.kind == "communication" and not row.unmatched
    ]
    unmatched = [row for row in result.rows if row.unmatched]
    lines += _table(f"by {result.by}", compute, result, limit)
    if communication:
        lines += ["", *_communication(communication, result, limit)]
    if unmatched:
        lines += ["", *_table("without a counterpart", unmatched, result, limit)]
    counted = ", ".join(
        f"{count} by {by}" if by != "unmatched" else f"{count} not at all"
        for by, count in result.paired_by.items()
    )
    return [*lines, "", f"paired: {counted}"]


def _steps_line(result: Diff) -> str:
    def name(step) -> str:
        return "whole trace" if step.number is None else f"#{step.number}"

    shown = ", ".join(f"{name(one)} with {name(other)}" for one, other in result.steps[:6])
    more = f" and {len(result.steps) - 6} more" if len(result.steps) > 6 else ""
    left = (
        f"; steps left out: {result.left_out[0]} real, {result.left_out[1]} simulated"
        if any(result.left_out)
        else ""
    )
    return f"steps      {shown}{more}{left}"


def _totals(result: Diff) -> list[str]:
    steps = len(result.steps)
    lines = [
        f"{'ms per step':26s} {'real':>10s} {'simulated':>10s} {'difference':>11s} {'of the step':>11s}"
    ]
    for label, name in PARTS:
        real, simulated = getattr(result.real, name), getattr(result.simulated, name)
        if not real and not simulated:
            continue
        lines.append(
            f"{label:26s} {real / steps / 1e6:10.3f} {simulated / steps / 1e6:10.3f} "
            f"{(simulated - real) / steps / 1e6:+11.3f} {(simulated - real) / result.real.step_ns:+11.2%}"
        )
    return lines


def _cut(rows: list[Row], result: Diff, limit: int) -> tuple[list[Row], list[str]]:
    shown, rest = (rows[:limit], rows[limit:]) if limit else (rows, [])
    if not rest:
        return shown, []
    share = sum(row.contribution_ns for row in rest) / result.real.step_ns
    return shown, [f"{share:+7.2%}  in {len(rest)} more rows (--limit 0 shows all)"]


def _table(title: str, rows: list[Row], result: Diff, limit: int) -> list[str]:
    steps = len(result.steps)
    shown, more = _cut(rows, result, limit)
    lines = [
        f"{'step':>7s} {'GPU ms':>9s} {'sim. ms':>9s} {'ratio':>6s} {'n':>6s} {'sim. n':>6s} {'mean us':>9s} "
        f"{'sim. us':>9s}  {title}"
    ]
    for row in shown:
        if row.kind == "idle":
            real, simulated, means, counts, ratio = (
                row.real.owned_ns,
                row.simulated.owned_ns,
                ("", ""),
                ("", ""),
                "",
            )
        else:
            real, simulated = row.real.gpu_ns, row.simulated.gpu_ns
            means = tuple(
                "" if side.mean_ns is None else f"{side.mean_ns / 1e3:.1f}"
                for side in (row.real, row.simulated)
            )
            counts = tuple(f"{side.count / steps:.4g}" for side in (row.real, row.simulated))
            ratio = f"{simulated / real:.2f}" if real and simulated else ""
        lines.append(
            f"{row.contribution_ns / result.real.step_ns:+7.2%} {real / steps / 1e6:9.3f} "
            f"{simulated / steps / 1e6:9.3f} {ratio:>6s} {counts[0]:>6s} {counts[1]:>6s} "
            f"{means[0]:>9s} {means[1]:>9s}  {row.label}"
        )
    return lines + more


def _communication(rows: list[Row], result: Diff, limit: int) -> list[str]:
    steps = len(result.steps)
    shown, more = _cut(rows, result, limit)
    lines = [
        f"{'step':>7s} {'exposed':>9s} {'sim. ms':>9s} {'n':>6s} {'sim. n':>6s} {'mean us':>9s} {'sim. us':>9s} "
        f"{'GB/s':>7s} {'sim.':>7s}  communication (time exposed, duration, bus bandwidth)"
    ]
    for row in shown:
        sides = (row.real, row.simulated)
        means = ["" if side.mean_ns is None else f"{side.mean_ns / 1e3:.1f}" for side in sides]
        rates = [
            "" if rate is None else f"{rate:.1f}"
            for rate in (bus_bandwidth(row, side) for side in sides)
        ]
        lines.append(
            f"{row.contribution_ns / result.real.step_ns:+7.2%} {row.real.owned_ns / steps / 1e6:9.3f} "
            f"{row.simulated.owned_ns / steps / 1e6:9.3f} {row.real.count / steps:6.4g} "
            f"{row.simulated.count / steps:6.4g} {means[0]:>9s} {means[1]:>9s} "
            f"{rates[0]:>7s} {rates[1]:>7s}  {row.label}"
        )
    return lines + more
