"""The content of the page as data: answers, tables, and the timeline.

Why it exists: everything that is computed for the page is computed here, from the report and from
excerpts of traces (excerpt.py), so that tests can compare it with both. The script in the page only
formats and draws. Rule: no number without its unit in its name; what is left out is said in `notes`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from phantora_ns.model.cluster import Cluster
from phantora_ns.page.advice import advice
from phantora_ns.page.answers import answers
from phantora_ns.page.links import LinkUse
from phantora_ns.page.memory import held_shown, shown
from phantora_ns.page.timeline import timeline
from phantora_ns.page.waits import waits
from phantora_ns.sim.topology import TopologyError

SCHEMA = 2
WARM_UP = 3
"""The most steps of a run left out of means after the first one; of short runs it is half
(report/steps.py)."""
MOST_KERNELS = 60

Excerpts = Mapping[int, Mapping[str, Any]]


def content(
    report: Mapping[str, Any],
    cluster: Cluster,
    command: Sequence[str],
    excerpts: Excerpts,
) -> dict[str, Any]:
    """All that the page shows. `excerpts` by rank; none when nothing was traced."""
    notes: list[str] = []
    counted = _counted(excerpts, report.get("step"))
    window = _window(excerpts, counted)
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "command": shlex.join(command),
        "cluster": _cluster(cluster),
        "report": dict(report),
        "advice": advice(dict(report)),
        "counted_steps": counted,
        "step": _step_time(excerpts, counted),
        "steps": _steps(excerpts),
        "kernels": _kernels(excerpts),
        "held": held_shown(report.get("memory_held")),
        "memory": shown((rank, found["memory"]) for rank, found in excerpts.items()),
        "waits": None,
        "links": None,
        "timeline": timeline(excerpts, counted, notes),
    }
    launches = {rank: found["communication"] for rank, found in excerpts.items()}
    if any(launches.values()):
        result["waits"] = waits(launches, *window)
        result["links"] = _links(report, cluster, launches, window, notes)
    _note_what_is_left_out(report, excerpts, counted, notes)
    return result | {"answers": answers(result), "notes": notes}


def _cluster(cluster: Cluster) -> dict[str, Any]:
    gpu = cluster.gpu_model
    return {
        "name": cluster.name,
        "description": cluster.description,
        "gpu": gpu.name,
        "gpu_memory_bytes": gpu.memory_bytes,
        "faults": [f"{fault.link or fault.gpu} at {fault.factor:.0%}" for fault in cluster.faults],
    }


def _numbers(excerpts: Excerpts) -> list[int]:
    """The steps that every traced rank has, in order."""
    found = [
        {step["number"] for step in excerpt["steps"] if step["number"] is not None}
        for excerpt in excerpts.values()
    ]
    return sorted(set.intersection(*found)) if found else []


def _counted(excerpts: Excerpts, told: Mapping[str, Any] | None) -> list[int]:
    """The steps over which means are taken. Step 0 begins with the process, and the next ones of the run still
    allocate; they are left out if there are others. `told`: the report's steps, which are of the whole run; a
    trace may begin later."""
    numbers = _numbers(excerpts)
    later = [number for number in numbers if number > 0]
    if told is None:
        return later[min(WARM_UP, len(later) // 2) :] or numbers
    first = 1 + min(WARM_UP, told["count"] // 2)
    return [number for number in later if number >= first] or later or numbers


def _of(excerpt: Mapping[str, Any], counted: Sequence[int]) -> list[Mapping[str, Any]]:
    """A rank's counted steps; all of them in a trace without numbered steps."""
    steps = [step for step in excerpt["steps"] if step["number"] in counted]
    return steps or list(excerpt["steps"])


def _window(excerpts: Excerpts, counted: Sequence[int]) -> tuple[int, int]:
    """From the beginning of the first counted step to the end of the last, over all ranks."""
    steps = [step for excerpt in excerpts.values() for step in _of(excerpt, counted)]
    if not steps:
        return 0, 0
    return min(step["start_ns"] for step in steps), max(step["end_ns"] for step in steps)


def _step_time(excerpts: Excerpts, counted: Sequence[int]) -> dict[str, Any] | None:
    """The counted steps of the first traced rank, by its trace."""
    if not excerpts or not counted:
        return None
    first = min(excerpts)
    lengths = [step["end_ns"] - step["start_ns"] for step in _of(excerpts[first], counted)]
    return {
        "rank": first,
        "mean_ns": round(sum(lengths) / len(lengths)),
        "least_ns": min(lengths),
        "most_ns": max(lengths),
        "steps": len(lengths),
    }


def _steps(excerpts: Excerpts) -> list[dict[str, Any]]:
    return [
        {"rank": rank} | dict(step)
        for rank, excerpt in sorted(excerpts.items())
        for step in excerpt["steps"]
    ]


def _kernels(excerpts: Excerpts) -> list[dict[str, Any]]:
    """The kernels of all traced ranks added up, longest first."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for _, excerpt in sorted(excerpts.items()):
        for row in excerpt["kernels"]:
            key = (row["name"], row["operator"], row["kind"], row["source"])
            group = groups.setdefault(key, dict(row) | {"count": 0, "gpu_ns": 0})
            group["count"] += row["count"]
            group["gpu_ns"] += row["gpu_ns"]
    rows = sorted(groups.values(), key=lambda row: (-row["gpu_ns"], row["name"], row["operator"]))
    total_ns = sum(row["gpu_ns"] for row in rows)
    for row in rows:
        row["share"] = round(row["gpu_ns"] / total_ns, 6) if total_ns else 0.0
    return rows[:MOST_KERNELS]


def _links(
    report: Mapping[str, Any],
    cluster: Cluster,
    launches: Mapping[int, Sequence[Mapping[str, Any]]],
    window: tuple[int, int],
    notes: list[str],
) -> dict[str, Any] | None:
    gpus = {
        rank["rank"]: rank["node"] * cluster.gpus_per_node + rank["device"]
        for rank in report["ranks"]
        if rank["rank"] is not None and rank["node"] is not None and rank["device"] is not None
    }
    try:
        use = LinkUse(cluster, (report["nccl"] or {}).get("choices"), *window)
    except TopologyError as error:
        notes.append(f"Links are not shown: {error}.")
        return None
    use.add_all(launches, gpus)
    result = use.result()
    if use.left_out:
        notes.append(
            f"{use.left_out} transfers are not in the table of links, because not all of their "
            "members were traced or their bytes are not in the traces."
        )
    return result


def _means(report: Mapping[str, Any], counted: Sequence[int]) -> str:
    """Of which steps the numbers are."""
    last = f" to {counted[-1]}" if len(counted) > 1 else ""
    text = (
        f"Where the step goes, waiting and links are of traced step{'s' if last else ''} {counted[0]}{last}, "
        "counted from 0; kernels and the timeline are of all traced steps."
    )
    told = report.get("step")
    if told:
        settled = (
            "the settled step" if told["settled"] == 1 else f"the {told['settled']} settled steps"
        )
        text += f" The step time at the top is that of {settled} of the whole run, traced or not."
    return text


def _note_what_is_left_out(
    report: Mapping[str, Any], excerpts: Excerpts, counted: Sequence[int], notes: list[str]
) -> None:
    ranks = sum(rank["rank"] is not None for rank in report["ranks"])
    if not excerpts:
        notes.append("No rank was traced, so there are no steps, kernels, links or timeline.")
        return
    if len(excerpts) < ranks:
        notes.append(
            f"{len(excerpts)} of {ranks} ranks were traced: steps, kernels, waiting and the "
            "timeline are theirs. Memory and the report's totals are of all ranks."
        )
    if counted:
        notes.append(_means(report, counted))
        endless = {excerpt["endless_step"] for excerpt in excerpts.values()} - {None}
        if endless:
            notes.append(
                f"Step {', '.join(map(str, sorted(endless)))} was traced too, but counts nowhere: the GPU still "
                "worked when the host had ended it, and only a trace of the next step would show its end."
            )
    else:
        notes.append("No optimizer's step was seen: all is one step.")
    lost = sum(excerpt["left_out_events"] for excerpt in excerpts.values())
    if lost:
        notes.append(f"{lost} events had no final time when the run ended, and are left out.")
