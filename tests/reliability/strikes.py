"""Why it exists: a kill campaign draws what it does from a seed, so that each strike can be repeated.
A strike is one signal, or a stop with what follows it, to one process of a run."""

import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Signal = signal.Signals
ROLES = ("launcher", "hub", "sandbox", "init", "agent", "rank", "worker")
LEADER = "leader"
"""The rank that a GPU runs, in jobs that have one."""
DEADLY = (Signal.SIGKILL, Signal.SIGTERM, Signal.SIGINT)
LONGEST_STOP_S = 3.0


@dataclass(frozen=True)
class Strike:
    """`number` to a process of `role`, `after_s` after it appeared; `choice` picks one of several.
    A stop lasts `stop_s`; then comes `then`."""

    role: str
    number: Signal
    after_s: float
    choice: float
    stop_s: float = 0.0
    then: Signal | None = None

    @property
    def harmless(self) -> bool:
        """It must change nothing."""
        return self.then is Signal.SIGCONT

    @property
    def kind(self) -> str:
        """In words."""
        return self.number.name + (f"+{self.then.name}" if self.then else "")

    @property
    def last(self) -> Signal:
        """What ends the process."""
        return self.then or self.number

    def __str__(self) -> str:
        stop = f" after {self.stop_s:.2f} s" if self.then else ""
        return f"{self.role}: {self.kind}{stop}, at {self.after_s:.2f} s"


def draw(seed: str, lives: dict[str, float], roles: Sequence[str] = ROLES) -> Strike:
    """The strike of a seed, at one of `roles`. `lives`: for how many seconds each role lives; the first
    of them are where most happens."""
    source = random.Random(seed)
    role = source.choice(roles)
    after_s = source.random() ** 1.5 * lives[role]
    choice = source.random()
    number = source.choice((*DEADLY, Signal.SIGSTOP))
    if number is not Signal.SIGSTOP:
        return Strike(role, number, after_s, choice)
    then = source.choice((Signal.SIGCONT, Signal.SIGCONT, Signal.SIGKILL))
    return Strike(role, number, after_s, choice, source.uniform(0.05, LONGEST_STOP_S), then)


def role_of(command: str, job: str) -> str | None:
    """The role of a process by its command line; `job` is the name of the job's script. The launcher
    is known by its process number, and the first of the sandboxes is the one outside."""
    if "phantora_ns.hub" in command:
        return "hub"
    if "phantora-sandbox run" in command:
        return "init"
    if "-m phantora_ns" in command or job not in command:
        return None
    if command.endswith(" rank"):
        return "rank"
    if " worker " in command:
        return "worker"
    if "torchrun" in command:
        return "agent"
    return "agent" if job == "job.py" else "rank"


def right_codes(strike: Strike, agent_catches: bool) -> Callable[[int], bool]:
    """Whether an exit code is right for a run that was struck before its end. A node's init and the
    outer sandbox forward what they can. `agent_catches`: an agent that has begun ends by what it
    gets with exit code 1, which is then the run's."""
    number = strike.last
    ours, forwarded = 70, 128 + number
    codes = {
        # before it handles signals, one ends it
        "launcher": {-number} if number is Signal.SIGKILL else {forwarded, -number},
        "hub": {ours},
        "sandbox": {ours} if number is Signal.SIGKILL else {ours, forwarded},
        "init": {forwarded},
        "agent": {forwarded},
        "rank": {1},
        LEADER: {1},
        "worker": {1},
    }[strike.role]
    if (
        agent_catches
        and number is not Signal.SIGKILL
        and strike.role in ("sandbox", "init", "agent")
    ):
        codes.add(1)
    return codes.__contains__
