"""Does the job fit? The answer of `phantora-ns fit`, from reports of its first steps.

Why it exists: out of memory is an answer, with a rank, a number and what to change, and not a traceback.
Rule: pure; every number is a report's. What was not seen is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from phantora_ns.protocol import Holder
from phantora_ns.report.held_part import by_kind, by_layer

GIB = 2**30
TIGHT = 0.95
"""Above this share of a GPU's memory a job fits, but barely."""
FULL = 0.999
"""Above this share the GPU was full, if only while PyTorch asked for more than there was."""
UNEVEN = 0.1
"""Ranks differ when the largest need is above the median one by this share of a GPU's memory."""
SEGMENTS = "expandable_segments"
MOST_MODULES = 5
UNSEEN = "which modules hold it is not known: nothing was seen of the ranks that were watched"
_SHARDED = (Holder.PARAMETERS, Holder.GRADIENTS, Holder.STATES)


@dataclass(frozen=True, slots=True)
class Need:
    """The most memory that a rank used, in bytes: `in_use` on the GPU, of which PyTorch's allocator
    `reserved`; its tensors `allocated` at most. None: the rank was ended before it could tell."""

    rank: int
    node: int
    in_use_bytes: int
    reserved_bytes: int | None
    allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rank asked for `asked` bytes in step `step`, counted from 1, when `free` were free."""

    rank: int
    step: int
    asked_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Fit:
    """`fits` None: the job failed for another reason. `needs`: of each rank; of a job that does not fit,
    as far as it came. `whole`: those of a run with more memory, when there was one. `ended`: why the run
    ended where it did. `held`: the report's `memory_held`, of the run with more memory when there was one."""

    fits: bool | None
    gpu: str
    memory_bytes: int
    ended: str
    needs: tuple[Need, ...]
    refused: tuple[Refusal, ...] = ()
    whole: tuple[Need, ...] | None = None
    advice: tuple[str, ...] = ()
    held: Mapping[str, Any] | None = None

    @property
    def nearest(self) -> Need | None:
        """The rank that needs most."""
        return max(
            self.whole or self.needs, key=lambda need: (need.in_use_bytes, -need.rank), default=None
        )

    @property
    def free_bytes(self) -> int | None:
        """What this rank leaves free; below 0 when it does not fit. None: not known."""
        if self.nearest is None or (not self.fits and self.whole is None):
            return None
        return self.memory_bytes - self.nearest.in_use_bytes

    def as_json(self) -> dict[str, Any]:
        """For programs; docs/how-to/fit.md has the fields."""
        nearest = self.nearest
        return asdict(self) | {
            "schema": 1,
            "nearest_rank": None if nearest is None else nearest.rank,
            "free_bytes": self.free_bytes,
        }


def needs_of(report: Mapping[str, Any]) -> tuple[Need, ...]:
    """What each rank of a report used."""
    return tuple(
        Need(
            rank["rank"],
            rank["node"],
            rank["peak_driver_bytes"],
            rank["peak_reserved_bytes"],
            rank["peak_allocated_bytes"],
        )
        for rank in report["ranks"]
        if rank["rank"] is not None and rank["peak_driver_bytes"]
    )


def refusals_of(report: Mapping[str, Any]) -> tuple[Refusal, ...]:
    """The ranks of a report that ran out of memory."""
    return tuple(
        Refusal(
            rank["rank"],
            rank["refused_step"],
            rank["refused_bytes"],
            rank["refused_free_bytes"],
        )
        for rank in report["ranks"]
        if rank["rank"] is not None and rank["refused_bytes"]
    )


def refusal_text(refused: Sequence[Refusal]) -> str:
    """Who ran out of memory, and for what."""
    first, others = refused[0], len(refused) - 1
    more = f", and so did {others} more rank{'s' if others > 1 else ''}" if others else ""
    return (
        f"in step {first.step} rank {first.rank} asked for {_bytes(first.asked_bytes)} when "
        f"{_bytes(first.free_bytes)} were free{more}"
    )


def advice(
    memory_bytes: int,
    needs: Sequence[Need],
    grows: bool,
    larger: Mapping[str, int],
    held: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """What to change so that a job with these `needs`, seen with more memory, fits. `grows`: its
    allocator's segments can grow already. `larger`: GPU models by name, with their memory. `held`: what
    held its peak, if known."""
    most = max(needs, key=lambda need: need.in_use_bytes)
    over = most.in_use_bytes - memory_bytes
    lines = []
    tensors = _with_nothing_kept(needs)
    if tensors is not None and not grows and tensors <= memory_bytes:
        lines.append(
            f"PYTORCH_CUDA_ALLOC_CONF={SEGMENTS}:True: PyTorch's tensors alone need "
            f"{_gib(tensors)}; the rest is held in pieces that do not fit"
        )
    usual = median(need.in_use_bytes for need in needs)
    if len(needs) > 1 and most.in_use_bytes - usual > UNEVEN * memory_bytes:
        lines.append(
            f"ranks differ: rank {most.rank} needs {_gib(most.in_use_bytes - usual)} more than half "
            "of them; move work from it, such as layers to other stages of a pipeline"
        )
    if over > 0:
        lines.append(
            f"{over / most.in_use_bytes:.0%} less per GPU: a smaller batch or sequence, activation "
            "checkpointing, or shards over more GPUs (FSDP, ZeRO, tensor parallelism)"
            f"{_where_it_is(held)}"
        )
    enough = [
        f"{name} ({_gib(size)})"
        for name, size in sorted(larger.items(), key=lambda one: one[1])
        if size >= most.in_use_bytes
    ]
    if enough:
        lines.append(f"a GPU with more memory: --set gpu={', or '.join(enough)}")
    return tuple(lines)


def _where_it_is(held: Mapping[str, Any] | None) -> str:
    """Which of these measures has more to take away."""
    if held is None or not held["held"]:
        return ""
    sums = dict(by_kind(held["held"]))
    sharded = sum(sums.get(Holder.LABELS[kind], 0) for kind in _SHARDED)
    rest = held["peak_bytes"] - sharded
    of_batch = "activations and all else"
    of_model = "parameters, gradients and states of the optimizer"
    first, second = (of_batch, rest), (of_model, sharded)
    if second[1] > first[1]:
        first, second = second, first
    return f"; {first[0]} were {_gib(first[1])} of the peak, {second[0]} {_gib(second[1])}"


def _with_nothing_kept(needs: Sequence[Need]) -> int | None:
    """What the rank that needs most would use if PyTorch held its tensors and nothing else."""
    found = [
        need.in_use_bytes - need.reserved_bytes + need.allocated_bytes
        for need in needs
        if need.reserved_bytes is not None and need.allocated_bytes is not None
    ]
    return max(found) if len(found) == len(needs) and found else None


def lines_of(fit: Fit) -> list[str]:
    """The answer in words, without "phantora-ns:" before it."""
    if fit.fits is None:
        return []
    head = _fits(fit) if fit.fits else _does_not_fit(fit)
    return [*head, *held_lines(fit.held), fit.ended, *(f"to change: {line}" for line in fit.advice)]


def _fits(fit: Fit) -> list[str]:
    nearest = fit.nearest
    if nearest is None:
        return ["fits: no rank used the memory of a GPU"]
    share = nearest.in_use_bytes / fit.memory_bytes
    others = "" if len(fit.needs) == 1 else ", the nearest to the limit,"
    barely = ", barely" if share > TIGHT else ""
    return [
        f"fits{barely}: rank {nearest.rank}{others} uses {_gib(nearest.in_use_bytes)} of "
        f"{_gib(fit.memory_bytes)} of {fit.gpu} ({share:.0%}); "
        f"{_gib(fit.memory_bytes - nearest.in_use_bytes)} are free",
        *_of_pytorch(nearest, share > FULL),
    ]


def _does_not_fit(fit: Fit) -> list[str]:
    lines = [
        f"does not fit {_gib(fit.memory_bytes)} of {fit.gpu}: {refusal_text(fit.refused)}"
        if fit.refused
        else "does not fit"
    ]
    if fit.whole is None or fit.nearest is None or fit.free_bytes is None:
        return [
            *lines,
            "how much it needs is not known: it did not run to its end with more memory",
        ]
    nearest, over = fit.nearest, -fit.free_bytes
    if over > 0:
        lines.append(
            f"with more memory it uses {_gib(nearest.in_use_bytes)} on rank {nearest.rank}, which is "
            f"nearest to the limit: {_gib(over)} too much ({over / fit.memory_bytes:.0%})"
        )
    else:
        lines.append(
            f"with more memory it uses {_gib(nearest.in_use_bytes)} on rank {nearest.rank}, which "
            "would fit; it fails because of how its memory is cut into pieces"
        )
    return lines + _of_pytorch(nearest, full=False)


def _of_pytorch(need: Need, full: bool) -> list[str]:
    if need.reserved_bytes is None or need.allocated_bytes is None:
        return []
    beside, what = need.in_use_bytes - need.reserved_bytes, "CUDA context, NCCL"
    if full:
        what += ", and for moments what it asked for in vain before it gave back what it kept"
    return [
        f"PyTorch on rank {need.rank}: {_gib(need.allocated_bytes)} allocated at most, "
        f"{_gib(need.reserved_bytes)} reserved; beside it {_gib(beside)} ({what})"
    ]


def held_lines(held: Mapping[str, Any] | None) -> list[str]:
    """What held the peak (`memory_held` of a report): its kinds in the first line, then the modules with the
    most."""
    if held is None:
        return []
    if held["rank"] is None:
        return [UNSEEN]
    if not held["held"]:
        return ["which modules hold it is not known: the allocator had blocks that were not seen"]
    peak = held["peak_bytes"]
    kinds = ", ".join(
        f"{kind} {_gib(size)}" for kind, size in by_kind(held["held"]) if size > peak / 100
    )
    lines = [f"at the peak of {_gib(peak)} on rank {held['rank']}: {kinds}"]
    for row in by_layer(held["held"])[:MOST_MODULES]:
        of = f"{row.module or 'not known'}{f' ({row.modules} modules)' if row.modules > 1 else ''}"
        lines.append(f"  {_gib(row.bytes)} ({row.bytes / peak:.0%}) {row.kind}: {of}")
    return lines


def ended_after(step: int, grown_step: int, quiet: int, without_steps: int, asked: bool) -> str:
    """Why a run that was held at the end of `step` was ended there. `asked`: the user named the step."""
    quietly = step - grown_step
    if quietly >= quiet:
        why = f"no rank's memory grew in the last {quietly} of them"
    else:
        why = f"memory still grew in step {grown_step}, so later steps may need more"
    text = f"ended after {step} steps{', as asked' if asked else ''}: {why}"
    if without_steps:
        text += f"; {without_steps} ranks tell no steps, and were ended where they waited"
    return f"{text}. Not seen: what comes later, such as evaluation, checkpoints and longer batches"


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"


def _bytes(value: int) -> str:
    return _gib(value) if value >= GIB / 10 else f"{value / 2**20:.1f} MiB"
