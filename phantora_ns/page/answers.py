"""The four questions that people come with, answered in a sentence each.

Why it exists: most readers look at the top of the page only. Rule: an answer says nothing that the
report or the page's tables do not say in numbers, and says so when it is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from phantora_ns.report.digits import digits
from phantora_ns.report.ended_part import ended_text
from phantora_ns.report.fit import refusal_text, refusals_of
from phantora_ns.report.spent import WORDS

GIB = 2**30
TIGHT = 0.95
"""Above this share of a GPU's memory a run fits, but barely."""
HELD = 0.5
"""A GPU whose clock is held down by its power limit for more than this share of the time is as fast as its power
allows: that is then a part of the answer."""
_CAUSES = {
    "host": "the GPU waits for its host",
    "queued": "gaps between kernels that were queued",
    "unknown": "idle for a reason that the trace does not say",
}


def answers(page: Mapping[str, Any]) -> list[dict[str, str]]:
    """For each question: `question`, `answer`, `detail`, and `level`: good, check or bad."""
    return [_fit(page), _speed(page), _where(page), _why(page)]


def _answer(question: str, answer: str, detail: str, level: str = "good") -> dict[str, str]:
    return {"question": question, "answer": answer, "detail": detail, "level": level}


def _fit(page: Mapping[str, Any]) -> dict[str, str]:
    question, report = "Will it fit?", page["report"]
    capacity = page["cluster"]["gpu_memory_bytes"]
    peaks = {
        rank["rank"]: rank["peak_driver_bytes"]
        for rank in report["ranks"]
        if rank["peak_driver_bytes"] and rank["rank"] is not None
    }
    if not peaks:
        return _answer(question, "Not known", "No rank reported the memory that it used.", "check")
    most = max(peaks, key=lambda rank: peaks[rank])
    share = peaks[most] / capacity
    detail = (
        f"At most {peaks[most] / GIB:.2f} of {capacity / GIB:.1f} GiB of a GPU were in use "
        f"({share:.0%}), on rank {most}; {(capacity - peaks[most]) / GIB:.2f} GiB were free."
    )
    if report.get("out_of_memory"):
        refused = refusal_text(refusals_of(report))
        return _answer(question, "No", f"The job ran out of memory: {refused}. {detail}", "bad")
    ended = ended_text(report)
    if ended is not None:
        return _answer(question, "Not known", f"The run was {ended}. {detail}", "check")
    if report["exit_code"]:
        failed = f"The run failed with exit code {report['exit_code']}. "
        return _answer(question, "The run failed", failed + detail, "bad")
    if share > TIGHT:
        return _answer(question, "Yes, barely", detail, "check")
    return _answer(question, "Yes", detail)


def _speed(page: Mapping[str, Any]) -> dict[str, str]:
    question, told = "How fast is it?", page["report"].get("step")
    step = page["step"] if told is None else told | {"steps": told["settled"]}
    if step is None:
        seconds = page["report"]["simulated_ns"] / 1e9
        detail = "No training step was seen: no optimizer's step was traced."
        return _answer(question, f"{seconds:.3g} s in all", detail, "check")
    detail = (
        f"The mean of {step['steps']} steps of rank {step['rank']}; the shortest takes "
        f"{milliseconds(step['least_ns'])}, the longest {milliseconds(step['most_ns'])}."
    )
    band = step.get("band")
    if band:
        detail += (
            f" {band['coverage']:.0%} of real runs are expected between "
            f"{milliseconds(band['low_ns'])} and {milliseconds(band['high_ns'])}."
        )
    elif step.get("no_band"):
        detail += f" It has no band: {step['no_band']}."
    work = step.get("work")
    if work:
        detail += (
            f" That is {work['per_s']:,.6g} {work['unit']}/s, {work['per_gpu_s']:,.6g} a GPU, with "
            f"{work['amount']:,.6g} {work['unit']} a step (--work)."
        )
    used = page["report"].get("arithmetic")
    if used and used["flop"] and used["hfu"] is not None:
        detail += f" Products and attention reach {used['hfu']:.1%} of the GPU's peak (HFU)."
    if used and used.get("mfu") is not None:
        detail += f" What the model needs is {used['mfu']:.1%} of the GPU's peak (MFU)."
    return _answer(question, f"{milliseconds(step['mean_ns'])} a step", detail)


def parts(page: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Counted steps of all traced ranks added up: `compute`, `exposed` and `idle`, each by kind."""
    counted = set(page["counted_steps"])
    steps: Sequence[Mapping[str, Any]] = [s for s in page["steps"] if s["number"] in counted]
    steps = steps or page["steps"]
    found: dict[str, Counter[str]] = {"compute": Counter(), "exposed": Counter(), "idle": Counter()}
    for step in steps:
        for group, kinds in found.items():
            kinds.update(step[group])
    return found


def _where(page: Mapping[str, Any]) -> dict[str, str]:
    question = "Where does the step go?"
    groups = {name: sum(kinds.values()) for name, kinds in parts(page).items()}
    total = sum(groups.values())
    if not total:
        return _answer(question, "Not known", "No rank was traced.", "check")
    compute, exposed, idle = (groups[name] / total for name in ("compute", "exposed", "idle"))
    detail = (
        f"Of a step, {compute:.1%} is computing, {exposed:.1%} is communication that nothing "
        f"hides, and in {idle:.1%} the GPU is idle."
    )
    largest = max(groups, key=lambda name: groups[name])
    named = {"compute": "Computing", "exposed": "Communication", "idle": "Idle"}[largest]
    return _answer(question, f"{named}: {groups[largest] / total:.0%}", detail)


def _why(page: Mapping[str, Any]) -> dict[str, str]:
    question, found = "Why is it not faster?", parts(page)
    total = sum(sum(kinds.values()) for kinds in found.values())
    if not total:
        return _answer(question, "Not known", "No rank was traced.", "check")
    losses = Counter({f"exposed {name}": ns for name, ns in found["exposed"].items()})
    losses.update({_CAUSES[name]: ns for name, ns in found["idle"].items()})
    kernels = found["compute"].most_common(1)
    lost = sum(losses.values())
    if kernels and lost < total / 10:
        kind, ns = kernels[0]
        name = WORDS.get(kind, kind) or "other kernels"
        detail = (
            f"The GPU computes almost all the time; {ns / total:.0%} of the step goes into {name}."
        )
        limited, clock = _power(page["report"])
        return _answer(question, f"Kernels: {name}{limited}", detail + clock)
    if not losses:
        return _answer(question, "Nothing ran", "No GPU work was traced.", "check")
    (name, ns), *others = losses.most_common(3)
    detail = f"{_capital(name)}: {ns / total:.0%} of the step"
    detail += "".join(f"; {other}: {other_ns / total:.0%}" for other, other_ns in others) + "."
    waits = page["waits"]
    straggler = waits["straggler"] if waits else None
    if straggler is not None:
        at = waits["ranks"].index(straggler)
        each = waits["caused_ns"][at] / (len(waits["ranks"]) - 1) / waits["window_ns"]
        detail += (
            f" Rank {straggler} is the straggler: it comes last to {waits['last'][at]} of "
            f"{waits['collectives']} collectives, and each other rank waits for it "
            f"{each:.0%} of the time."
        )
    return _answer(question, _capital(name), detail, "check")


def _power(report: Mapping[str, Any]) -> tuple[str, str]:
    """What to add to answer and detail when the power limit holds the GPU's clock down most of the time."""
    clock = report["gpu_clock"]
    if not clock or clock["held_share"] <= HELD:
        return "", ""
    return ", at the power limit", (
        f" The power limit holds the GPU's clock down {clock['held_share']:.0%} of the time; it is "
        f"{clock['mean_mhz']:.0f} MHz on average."
    )


def milliseconds(ns: float) -> str:
    """A time with four digits."""
    return f"{digits(ns / 1e9, 4)} s" if ns >= 1e9 else f"{ns / 1e6:.4g} ms"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
