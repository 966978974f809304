"""How a run ends: its exit code, who failed, and what is said about it.

Why it exists: when one thing fails, others fail within the same second. The first one decides.
Rule: pure; it hears what happened to nodes and hub, and has no clock and no process.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from phantora_ns.launch.errors import EXIT_OURS
from phantora_ns.launch.nodes import node_name


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL for 9; "signal N" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended_how(code: int) -> str:
    """How a process of ours ended, in words. `code`: as subprocess gives it."""
    return f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"


@dataclass(frozen=True)
class Verdict:
    """Why the run ends: its exit code, who failed (None, "job", "launcher" or "hub"), and one
    message (None: nothing to say). `ended_by`: the signal by which the user ended it."""

    exit_code: int
    failed_by: str | None
    message: str | None = None
    ended_by: str | None = None


class Outcome:
    """Collects what ends. `verdict` is the first failure, or success once all nodes have ended.
    `memory_kills`: how many processes the kernel had killed for lack of memory when the run began."""

    def __init__(self, nodes: int, memory_kills: int = 0) -> None:
        self._memory_kills = memory_kills
        self._left = set(range(nodes))
        self._reported: set[int] = set()
        self._not_run: dict[int, str] = {}
        self.failure: Verdict | None = None
        self._stopped = False

    @property
    def nodes_left(self) -> list[int]:
        """Nodes whose processes may still run."""
        return sorted(self._left)

    @property
    def commands_left(self) -> list[int]:
        """Nodes whose command has not ended."""
        return sorted(self._left - self._reported)

    def about_memory(self, memory_kills: int) -> str:
        """What to add to a failure's message: a rank that the kernel kills cannot say so itself.
        `memory_kills`: their number by now."""
        killed = memory_kills - self._memory_kills
        if killed <= 0:
            return ""
        processes = "a process" if killed == 1 else f"{killed} processes"
        return (
            f"; the kernel has killed {processes} of this machine for lack of memory since the run "
            "began: start fewer ranks, or end other programs"
        )

    def verdict(self) -> Verdict:
        """How the run ends, as far as is known."""
        return self.failure or Verdict(0, None)

    def fail(self, verdict: Verdict) -> bool:
        """Records a failure. False when an earlier one decides."""
        if self.failure is not None or self._stopped:
            return False
        self.failure = verdict
        return True

    def stop(self) -> None:
        """The run has seen enough: what ends from now on ends by our will, and the run went well."""
        self._stopped = True

    def command_exited(self, node: int, code: int) -> bool:
        """A node's command ended by itself. True when this is the failure that decides."""
        self._reported.add(node)
        how = self._not_run.get(node) or f"the command failed with exit code {code}"
        return code != 0 and self.fail(Verdict(code, "job", self._on(node, how)))

    def command_killed(self, node: int, number: int) -> bool:
        """A node's command was ended by a signal."""
        self._reported.add(node)
        return self.fail(
            Verdict(
                128 + number,
                "job",
                self._on(node, f"the command was killed by {signal_name(number)}"),
            )
        )

    def command_not_run(self, node: int, text: str) -> None:
        """The command could not be executed; its exit code (126 or 127, as in a shell) follows."""
        self._not_run[node] = text

    def node_gone(self, node: int) -> bool:
        """All of a node's processes are gone. True when its command had not ended before, and this
        is the failure that decides."""
        self._left.discard(node)
        if node in self._reported:
            return False
        self._reported.add(node)
        return self.fail(
            Verdict(
                128 + signal.SIGKILL,
                "job",
                f"the node was killed from outside; {node_name(node)}; if dmesg "
                "says that memory ran out, simulate fewer ranks",
            )
        )

    def hub_ended(self, how: str) -> bool:
        """The hub ended while the job ran."""
        return self.fail(
            Verdict(
                EXIT_OURS,
                "hub",
                f"the hub ended ({how}) while the job ran, and the job with it; its message, "
                "if it had one, is above; run it again, and report this if it happens again",
            )
        )

    def sandbox_ended(self, how: str) -> bool:
        """phantora-sandbox ended before its nodes did."""
        return self.fail(
            Verdict(
                EXIT_OURS,
                "launcher",
                f"phantora-sandbox ended ({how}) while the job ran, and the job with it; "
                "on this machine; see dmesg for who killed it, and run it again",
            )
        )

    def interrupted(self, number: int) -> bool:
        """The user asked for the end, and gets it also when the run has seen enough: its results are
        not made yet."""
        if self.failure is not None:
            return False
        name = signal_name(number)
        self.failure = Verdict(128 + number, None, f"{name}: ending the job", name)
        return True

    def _on(self, node: int, what: str) -> str:
        return f"{what}; on {node_name(node)}; its own messages are above"
