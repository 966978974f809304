"""The report in a few lines: what was simulated, how fast, and what to check before trusting it.

Why it exists: most people read only these lines, so everything that makes a result doubtful must
be among them. Rule: nothing is computed here that is not in the report. A failed job has no result; its lines say
what may help to find out why, and no more, because the job's own message is above them.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.report.arithmetic_part import arithmetic_text
from phantora_ns.report.digits import digits
from phantora_ns.report.ended_part import ended_text, failed_text
from phantora_ns.report.fit import held_lines, refusal_text, refusals_of
from phantora_ns.report.fold_part import fold_lines, fold_warnings
from phantora_ns.report.host_part import host_lines
from phantora_ns.report.spent import spent_lines

GUESS_WARNING_SHARE = 0.01
"""Above this share of GPU time, guessed kernel times get a warning."""
APART = 1.5
"""PyTorch's counter of memory says little when this much more was in use: jobs reset it (TorchTitan does so
in every step that it logs)."""
VALUES = "values"  # launch/record/leaders.py


def summary_lines(report: dict[str, Any]) -> list[str]:
    """The lines, without "phantora-ns:" before them."""
    failed = failed_text(report)
    if failed is not None:
        return _failed_lines(report, failed)
    simulated_s, wall_s = report["simulated_ns"] / 1e9, report["wall_s"]
    pace = (
        f", {digits(wall_s / simulated_s, 3)}x slower than simulated time"
        if simulated_s > 0
        else ""
    )
    lines = [
        f"simulated {_seconds(simulated_s)} of {report['world_size']} GPUs on {report['nodes']} "
        f"node{'s' if report['nodes'] > 1 else ''} in {_seconds(wall_s)}{pace}"
    ]
    ended = ended_text(report)
    if ended is not None:
        lines.append(ended)
    lines += _step_lines(report["step"]) + _work_lines(report["step"])
    lines += spent_lines(report)
    arithmetic = arithmetic_text(report["arithmetic"])
    if arithmetic is not None:
        lines.append(arithmetic)
    ranks = [rank for rank in report["ranks"] if rank["gpu_busy_ns"]]
    if ranks:
        busy = sum(rank["gpu_busy_ns"] for rank in ranks) / len(ranks) / 1e9
        line = f"per GPU: computing {_seconds(busy)}"
        if all(rank["comm_ns"] is not None for rank in ranks):
            comm = sum(rank["comm_ns"] for rank in ranks) / len(ranks) / 1e9
            exposed = sum(rank["exposed_comm_ns"] for rank in ranks) / len(ranks) / 1e9
            line += f", communicating {_seconds(comm)}, streams held up by it {_seconds(exposed)}"
        peaks = [
            rank["peak_allocated_bytes"]
            for rank in ranks
            if rank["peak_allocated_bytes"] is not None
        ]
        if peaks:
            counted, in_use = max(peaks), max(rank["peak_driver_bytes"] or 0 for rank in ranks)
            if in_use > APART * counted:
                line += (
                    f"; peak memory {in_use / 2**30:.2f} GiB in use ({counted / 2**30:.2f} GiB by PyTorch's "
                    "counter, which the job seems to have reset)"
                )
            else:
                line += f"; peak memory {counted / 2**30:.2f} GiB"
        lines.append(line)
    lines += held_lines(report["memory_held"])[:1]
    shares = report["kernel_time_share"]
    if shares:
        named = ", ".join(
            f"{share:.1%} {name}"
            for name, share in sorted(shares.items(), key=lambda item: -item[1])
        )
        lines.append(
            f"GPU time by source of kernel times: {named} (docs/report.md#sources-of-kernel-times)"
            f"{_elsewhere(report['recorded_elsewhere'])}"
        )
    clock = report["gpu_clock"]
    if clock:
        lines.append(
            f"GPU clock: {clock['mean_mhz']:.0f} MHz on average, held down by the power limit "
            f"{clock['held_share']:.0%} of the time"
        )
    elif ranks:
        lines.append(
            "GPU clock: not modelled, since nothing was measured of this GPU's power; its kernels "
            "are taken to run at the clock of the recorded ones"
        )
    lines += host_lines(report["host_time"]) + _values_lines(report["values"])
    lines += _start_lines(report["starts"]) + fold_lines(report.get("folding"))
    if report["databases"]:
        lines.append(f"kernel times from {', '.join(report['databases'])}")
    if report["leading"]:
        lines.append(_leading_line(report["leading"]))
    return lines + _warnings(report)


def _failed_lines(report: dict[str, Any], failed: str) -> list[str]:
    """Of a job that failed: how far it came, and what may be the cause."""
    lines = [failed]
    if report["out_of_memory"]:
        text = refusal_text(refusals_of(report))
        lines = [f"out of memory: {text}; phantora-ns fit says how much is missing"]
        lines += held_lines(report["memory_held"])[:1]
    folding = report.get("folding")
    refused = fold_lines(folding) if folding and folding.get("refusal") else []
    return lines + refused + _step_lines(report["step"]) + _causes(report)


def _step_lines(step: dict[str, Any] | None) -> list[str]:
    """The step and its band: `step 0.983 s (0.96-1.00)`."""
    if step is None:
        return []
    mean, band = step["mean_ns"], step["band"]
    unit, of_unit = ("s", 1e9) if mean >= 1e9 else ("ms", 1e6) if mean >= 1e6 else ("us", 1e3)
    if band is None:
        return [f"step {digits(mean / of_unit, 4)} {unit}, with no band: {step['no_band']}"]
    terms = ("kernels", "gpu", "communication", "host")
    largest = max(terms, key=lambda term: band[term])
    why = {
        "kernels": "times of kernels that were not recorded",
        "gpu": "how fast the chip is",
        "communication": "communication",
        "host": "the host",
    }[largest]
    ends = "-".join(digits(band[end] / of_unit, 3) for end in ("low_ns", "high_ns"))
    return [
        f"step {digits(mean / of_unit, 4)} {unit} ({ends}): {band['coverage']:.0%} of real runs are "
        f"expected between these; least sure is {why}"
    ]


def _work_lines(step: dict[str, Any] | None) -> list[str]:
    """What is done a second, if the user said what a step does."""
    work = (step or {}).get("work")
    if not work:
        return []
    amount, per_s, each = (f"{work[name]:,.6g}" for name in ("amount", "per_s", "per_gpu_s"))
    unit = work["unit"]
    return [f"{per_s} {unit}/s, {each} a GPU: {amount} {unit} a step (--work)"]


def _elsewhere(recorded: dict[str, Any] | None) -> str:
    """How much of the measured time was measured under other library versions."""
    if not recorded or not recorded["time_share"]:
        return ""
    versions = recorded["versions"]
    named = versions[0] if len(versions) == 1 else "other library versions"
    return f"; {recorded['time_share']:.1%} recorded under {named}"


def _start_lines(starts: dict[str, Any] | None) -> list[str]:
    """Processes that did not start warm, though they were to (docs/warm-start.md)."""
    if starts is None or not starts["plain"]:
        return []
    reasons = "; ".join(f"{count} times: {why}" for why, count in sorted(starts["plain"].items()))
    return [f"{starts['warm']} processes started warm, others as usual ({reasons})"]


def _values_lines(values: dict[str, Any]) -> list[str]:
    """What the job read of tensors that nothing computed (docs/values.md)."""
    parts = []
    if values["unknown_reads"]:
        parts.append(
            f"{values['unknown_reads']} times the job read results that are not computed here, such as a loss "
            "that it logs, and got zero; that is expected (docs/values.md)"
        )
    if values["hollow_bytes"]:
        parts.append(
            f"large host tensors of up to {values['hollow_bytes'] / 2**30:.2f} GiB a rank held nothing"
        )
    if values["chosen"]:
        parts.append(f"{values['chosen']} results that only a GPU could know were chosen evenly")
    if values["replayed"]:
        again = (
            f", {values['repeated']} of them repeated beyond the recording"
            if values["repeated"]
            else ""
        )
        parts.append(f"{values['replayed']} values replayed{again}")
    return [f"values ({values['policy']}): {', '.join(parts)}"] if parts else []


def _leading_line(leading: dict[str, Any]) -> str:
    if not leading["led"]:
        return (
            f"rank {leading['leader']} was to lead, but no process of the job became its leader: "
            "nothing was measured"
        )
    rank = f"rank {', '.join(map(str, leading['led']))}"
    line = (
        f"{rank} led: {leading['measured_signatures']} signatures measured, "
        f"{leading['samples']} samples; other ranks waited for {leading['awaited']} times"
    )
    if leading["host_recorded"] and not leading["samples"]:
        line = f"{rank} led: what its host pays was recorded"
    if leading["records"] == VALUES:
        line = f"{rank} led: what its GPU computed was recorded"
    estimated = leading["estimated_after_waiting"]
    if estimated:
        named = ", ".join(
            f"{count} on rank {rank}"
            for rank, count in sorted(estimated.items(), key=lambda item: int(item[0]))
        )
        line += f", and got estimates after waiting: {named}"
    return line


def _warnings(report: dict[str, Any]) -> list[str]:
    lines = []
    guessed = report["kernel_time_share"].get("guess", 0)
    if guessed > GUESS_WARNING_SHARE:
        lines.append(
            f"warning: {guessed:.1%} of GPU time is guessed from launch sizes alone; "
            "record these kernels on a GPU"
        )
    leading = report["leading"]
    if leading and leading["problem"]:
        lines.append(f"warning: the recording is not complete: {leading['problem']}")
    if leading and leading["profile"]:
        ranks = [
            rank
            for rank in report["ranks"]
            if rank["rank"] in leading["unmeasured_ranks"] and rank["gpu_busy_ns"]
        ]
        share = max((rank["gpu_unmeasured_ns"] / rank["gpu_busy_ns"] for rank in ranks), default=0)
        lines.append(
            f"warning: {leading['unmeasured_signatures']} signatures were measured on no rank, "
            f"at most {share:.1%} of a rank's GPU time; to measure them: {leading['profile']}"
        )
    if report["guesses"]:
        lines.append(f"warning: guessed: {_counted(report['guesses'])}")
    if report["revised"]:
        lines.append(
            f"warning: {report['revised']} times changed after a rank had been told them, "
            "because of ranks that were idle outside of CUDA calls, or did not run"
        )
    lines += [f"warning: {text}" for text in report.get("killed", [])]  # and the job went on
    lines += fold_warnings(report.get("folding"))
    if report["answers_past_sleepers"]:
        lines.append(
            f"warning: {report['answers_past_sleepers']} answers were given past threads that sleep "
            "or work again and again; another run may differ (docs/report.md)"
        )
    if report["expired_values"]:
        lines.append(
            f"warning: {report['expired_values']} results of small collectives were read so late "
            "that their values were gone; they read as zero"
        )
    return lines + _causes(report)


def _causes(report: dict[str, Any]) -> list[str]:
    """What went wrong, and so may be why a job failed."""
    lines = []
    if report["unsupported_calls"]:
        lines.append(
            "warning: calls that are not supported and failed: "
            + _counted(report["unsupported_calls"])
        )
    if report["warnings"]:
        lines.append(f"warning: {_counted(report['warnings'])}")
    if report["bad_messages"]:
        lines.append(f"warning: the hub could not read {report['bad_messages']} messages")
    if report["messages"] is None:
        lines.append("warning: the hub left no result; times of communication are unknown")
    return lines


def _counted(diagnostics: dict[str, int], most: int = 8) -> str:
    ordered = sorted(diagnostics.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(
        text if count == 1 else f"{text} ({count} times)" for text, count in ordered[:most]
    )
    return named + (
        f", and {len(ordered) - most} more in the report" if len(ordered) > most else ""
    )


def _seconds(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:.0f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
