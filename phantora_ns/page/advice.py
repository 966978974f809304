"""What to check before trusting a run, each with what to do about it.

Why it exists: the report counts warnings and guesses; a reader wants to know what each of them asks
for. Rule: everything that the summary warns of is here too, and nothing is left out.
"""

from __future__ import annotations

from typing import Any

from phantora_ns.report.ended_part import ended_text

GUESS_SHARE = 0.01
"""Above this share of GPU time, guessed kernel times are a warning (report/summary.py)."""
UNKNOWN_HOST_SHARE = 0.05
"""As in report/host_part.py, of host time."""
_PROFILE = "Record these kernels on a GPU: phantora-ns profile COMMAND (docs/leading.md)."
_COVERAGE = "docs/coverage.md lists every function; CONTRIBUTING.md says how one is added."
_CURES = (
    ("kernel time scaled from", _PROFILE),
    (
        "kernel time recorded under the name",
        "None needed; run under the recorded PyTorch to check.",
    ),
    ("NCCL", "Check the version of NCCL in the job's environment (docs/nccl.md)."),
    ("job's NCCL", "Check the version of NCCL in the job's environment (docs/nccl.md)."),
)


def advice(report: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry for each: `kind`, `what`, `count` and `cure`; the worst first."""
    found = _failures(report)
    found += [
        _entry("not supported", name, count, f"The call failed with its own code. {_COVERAGE}")
        for name, count in report["unsupported_calls"].items()
    ]
    found += [
        _entry("warning", text, count, _cure(text)) for text, count in report["warnings"].items()
    ]
    found += _shares(report)
    found += [
        _entry("guess", text, count, _cure(text)) for text, count in report["guesses"].items()
    ]
    return found + _leading(report) + _notes(report)


def _entry(kind: str, what: str, count: int | None, cure: str) -> dict[str, Any]:
    return {"kind": kind, "what": what, "count": count, "cure": cure}


def _cure(text: str) -> str:
    return next(
        (cure for begin, cure in _CURES if text.startswith(begin)),
        "Check this before you trust the result (docs/report.md).",
    )


def _failures(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    ended = ended_text(report)
    if ended is not None:
        text = f"The run was {ended}"
        found.append(_entry("warning", text, None, "What comes later is not in these numbers."))
    elif report["exit_code"]:
        who = {"hub": "the simulator", "launcher": "phantora-ns"}.get(
            report["failed_by"], "the job"
        )
        text = f"The run failed with exit code {report['exit_code']}, because of {who}"
        found.append(_entry("error", text, None, "The job's own log says why."))
    found += [
        _entry("error", text, None, "Correct the job's communication.") for text in report["errors"]
    ]
    found += [
        _entry(
            "warning", f"{text[0].upper()}{text[1:]}", None, "The job's own log says what followed."
        )
        for text in report.get("killed", [])
    ]
    if report["messages"] is None:
        text = "The hub left no result: times of communication are unknown"
        found.append(_entry("warning", text, None, "Run it again."))
    counts = (
        ("bad_messages", "messages that the hub could not read", "Please report this as a defect."),
        (
            "revised",
            "times that changed after a rank had been told them",
            "Ranks were idle outside of CUDA calls. Compare a second run.",
        ),
        (
            "expired_values",
            "results of small collectives that were read so late that their values were gone",
            "They read as zero; check what the job does with them (docs/values.md).",
        ),
    )
    for name, what, cure in counts:
        if report[name]:
            found.append(_entry("warning", what, report[name], cure))
    return found


def _shares(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    guessed = report["kernel_time_share"].get("guess", 0)
    if guessed:
        kind = "warning" if guessed > GUESS_SHARE else "guess"
        text = f"{guessed:.2%} of GPU time is guessed from launch sizes alone"
        found.append(_entry(kind, text, None, _PROFILE))
    shares = report["host_time"]["time_share"]
    unknown = shares.get("unknown", 0) + shares.get("class", 0)
    if unknown > UNKNOWN_HOST_SHARE:
        text = f"{unknown:.1%} of host time is of call sites that no database holds"
        cure = "Record them: --record-host, or phantora-ns profile (docs/host-time.md)."
        found.append(_entry("warning", text, None, cure))
    elsewhere = report["recorded_elsewhere"]
    if elsewhere and elsewhere["time_share"]:
        named = ", ".join(elsewhere["versions"])
        text = f"{elsewhere['time_share']:.1%} of GPU time was recorded under {named}"
        found.append(_entry("note", text, None, _PROFILE))
    return found


def _leading(report: dict[str, Any]) -> list[dict[str, Any]]:
    leading = report["leading"]
    if not leading:
        return []
    found = []
    if leading["problem"]:
        text = f"The recording is not complete: {leading['problem']}"
        found.append(_entry("warning", text, None, "Record again (docs/leading.md)."))
    if leading["profile"]:
        text = "signatures that no rank measured"
        found.append(
            _entry("warning", text, leading["unmeasured_signatures"], f"Run {leading['profile']}")
        )
    return found


def _notes(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    values = report["values"]
    if values["unknown_reads"]:
        text = "times the job read results that are not computed here, and got zero"
        cure = "Nothing, unless the job's control flow depends on them (docs/values.md)."
        found.append(_entry("note", text, values["unknown_reads"], cure))
    if values["chosen"]:
        text = "results that only a GPU could know were chosen evenly"
        cure = "If they steer the job, replay recorded values: --values replay (docs/values.md)."
        found.append(_entry("note", text, values["chosen"], cure))
    if report["gpu_clock"] is None and report["kernel_time_share"]:
        text = "The GPU's clock is not modelled: nothing was measured of its power"
        cure = "Kernels take the times of the recorded clock (docs/kernel-times.md)."
        found.append(_entry("note", text, None, cure))
    if report["host_time"]["mode"] == "measured":
        text = "Host time was measured on this machine, beside everything else that it did"
        cure = "Times repeat with --host-time model or auto (docs/host-time.md)."
        found.append(_entry("note", text, None, cure))
    if report["host_time"]["measured"]:
        text = "Host times were measured in this run"
        cure = "The next run of this command is charged the same, and repeats exactly."
        found.append(_entry("note", text, None, cure))
    return found
