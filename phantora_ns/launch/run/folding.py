"""Which ranks of a job run, and which only stand by: --fold (docs/folding.md).

Why it exists: folding is right only where ranks that stand for others would do exactly the same. What
can be known of that before the job starts is checked here. An explicit period that cannot be right is
refused. With auto the job then runs unfolded, and the report has the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora_ns.launch.command.job_command import JobCommand
from phantora_ns.launch.errors import UsageError
from phantora_ns.launch.record import leaders, recorded_values
from phantora_ns.launch.record.host_time import HostTimeOptions
from phantora_ns.model.cluster import Cluster
from phantora_ns.model.fold import LAST, Fold

EQUAL_HOSTS = ("model", "none")
"""Values of --host-time with which ranks that do the same take the same time."""
WITNESSES = {"all": LAST, "first": 0}
"""Values of --fold-witnesses: how many of each class's last members run."""


@dataclass(frozen=True)
class Folding:
    """`fold`: None when every rank runs. `asked`: the option as given. `reason`: why a job is not
    folded although auto was asked for."""

    fold: Fold | None = None
    asked: str = "off"
    reason: str | None = None

    def running(self, world: int) -> int:
        """How many of the job's ranks run."""
        return world if self.fold is None else self.fold.running


@dataclass(frozen=True)
class Job:
    """What decides whether a job can be folded."""

    command: JobCommand
    cluster: Cluster
    world: int
    host: HostTimeOptions
    sync: str
    values: recorded_values.ValuesOption
    leading: leaders.Leading | None

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.world // self.cluster.nodes


def choose(text: str, job: Job, witnesses: str = "all") -> Folding:
    """What --fold `text` and --fold-witnesses mean for a job. Raises UsageError."""
    if text == "off":
        if witnesses != "all":
            raise UsageError(
                "--fold-witnesses has no effect without --fold; on the command line; add --fold, or leave "
                "it out"
            )
        return Folding()
    obstacle = _obstacle(job)
    try:
        fold = _fold(text, job, WITNESSES[witnesses])
    except ValueError as error:
        obstacle, fold = obstacle or str(error), None
    if obstacle is None and fold is not None and fold.period % job.per_node:
        obstacle = (
            f"a node has {job.per_node} ranks, and GPUs in different places of a node differ: the period "
            f"must be a multiple of {job.per_node}"
        )
    if obstacle is None:
        return Folding(fold, text)
    if text == "auto":
        return Folding(None, text, obstacle)
    raise UsageError(
        f"--fold {text} cannot be used: {obstacle}; on the command line; correct it, or leave --fold out"
    )


def _fold(text: str, job: Job, last: int) -> Fold:
    """`last`: of Fold. Raises ValueError when the numbers do not fit the job."""
    if text == "auto":
        return Fold(job.per_node, job.world, job.world, last)
    period, slash, block = text.partition("/")
    if not period.isdigit() or (slash and not block.isdigit()):
        raise UsageError(
            f"--fold {text!r} is not off, auto or a number of ranks; on the command line; "
            "give one, such as 8, or 8/64"
        )
    return Fold(int(period), int(block) if slash else job.world, job.world, last)


def _obstacle(job: Job) -> str | None:
    """Why a job cannot be folded, whatever the period; None when nothing is known to be in the way."""
    torchrun = job.command.torchrun
    if torchrun is None:
        return "only torchrun's ranks are numbered in a known way"
    if torchrun.get("max_restarts", "0") not in ("", "0"):
        return "a job that is started again cannot be folded (torchrun's --max-restarts)"
    if job.host.mode not in EQUAL_HOSTS:
        return (
            f"with --host-time {job.host.mode} each host takes a time of its own, and an absent one's is "
            "not known: add --host-time model"
        )
    if job.sync != "conservative":
        return f"--sync {job.sync} corrects times after ranks have acted on them"
    if job.leading is not None:
        return "one rank runs on this machine's GPU: add --leaders none"
    if job.values.policy == recorded_values.REPLAY:
        return "replayed values differ between ranks: leave --values replay out"
    if any(fault.gpu is not None for fault in job.cluster.faults):
        return "a GPU is slower than the others (--slow-gpu, or a fault of the cluster file)"
    return None
