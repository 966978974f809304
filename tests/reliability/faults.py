"""Why it exists: a full disk, a limit or a failing file system may make any call of a run fail. This finds the
calls of a small run, lets each fail once, and judges the run as after a kill."""

import collections
import errno
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.runs import HERE, PYTHON_STARTS, Job, Range, Run, cheap

STEPS = 4
SLOW_MS = 1500
EACH, OF_CODE = 3, 6
"""Of a site's calls, how many are hit; of the loads of modules, and of Python's pages, in a process."""
OPENS = ("open", "open64", "openat", "openat64", "fopen", "fopen64")
WRITES = ("write", "writev", "pwrite", "pwrite64", "rename", "mkdir", "symlink", "bind")
READS = ("read", "pread", "pread64")
CLOCK = "clock"
"""Reads the time of day, which is set back."""
FORKS = ("fork", "vfork", "clone")
OTHERS_SAY = (
    "memoryerror",  # Python while it starts
    "error return without exception set",  # its C code, which has lost one
    "disk i/o error",
    "unable to open database file",
    "disk image is malformed",
    "disk is full",
    "attempt to write a readonly database",  # SQLite, where a file can be opened for reading only
)
SPACE = ("ftruncate", "ftruncate64", "fallocate", "posix_fallocate", "posix_fallocate64")
MEMORY = ("mmap", "mmap64", "memfd_create", "mount")
COUNTED = ("report: answers_past_sleepers",)
OUR_ROLES = ("launcher", "hub", "sandbox", "guard", "sweep", "writer")
# 1: the hub, or the interceptor, ended a rank, and its agent failed
# an agent ends with 70 when the fault hits its own interceptor, and with 1 when a rank has failed
RIGHT_CODES = {role: (70, 2) for role in OUR_ROLES} | {"hub": (70, 2, 1), "agent": (70, 1)}
TORCHRUNS_OWN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
"""How torchrun's traceback ends when a rank has failed."""


def errors_of(call: str) -> tuple[int, ...]:
    """What may happen to a call."""
    if call == CLOCK:
        return (0,)
    if call in OPENS:
        return errno.EMFILE, errno.ENOSPC, errno.EIO
    if call in WRITES:
        return errno.ENOSPC, errno.EIO
    if call in READS:
        return (errno.EIO,)
    if call in FORKS:
        return errno.EAGAIN, errno.ENOMEM
    if call in SPACE:
        return (errno.ENOSPC,)
    if call in MEMORY:
        return (errno.ENOMEM,)
    if call == "unshare":
        return errno.ENOSPC, errno.ENOMEM
    return errno.EMFILE, errno.ENOMEM  # sockets, pipes


@dataclass(frozen=True)
class Fault:
    """The `nth` call of a site in one process fails with `error`; 0: it is slow, or sets the clock
    back. `stays`: the later ones fail too."""

    site: str
    nth: int
    error: int
    stays: bool = False

    @property
    def role(self) -> str:
        """Whose call it is."""
        return self.site.split()[0]

    def variables(self, fired: Path) -> dict[str, str]:
        """For the injector."""
        stays = {"FAULT_STAYS": "1"} if self.stays else {}
        return stays | {
            "FAULT_AT": self.site,
            "FAULT_NTH": str(self.nth),
            "FAULT_ERRNO": str(self.error),
            "FAULT_MS": str(SLOW_MS),
            "FAULT_FIRED": str(fired),
        }

    def __str__(self) -> str:
        harmless = "set back" if self.site.split()[1] == CLOCK else "slow"
        what = errno.errorcode[self.error] if self.error else harmless
        return f"{self.site} #{self.nth}: {what}{', and stays' if self.stays else ''}"


class FaultRange(Range):
    """Runs of the cheap job on one node, with an injector in all of their processes."""

    def __init__(self, folder: Path, job: Job | None = None) -> None:
        self._injector = folder / "injector.so"
        source = HERE / "injector.c"
        flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
        subprocess.run(["cc", *flags, "-o", self._injector, source, "-ldl"], check=True)
        super().__init__(folder, job or cheap(1, STEPS))

    def sites(self) -> dict[str, int]:
        """The sites of a run, with how many calls of each the process makes that makes most. Those
        which not every run has are left out."""
        found = [self._count() for _ in range(2)]
        return {
            site: min(counts[site] for counts in found)
            for site in sorted(found[0].keys() & found[1].keys())
        }

    def _count(self) -> dict[str, int]:
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        run = self.once(lambda *_: None, True, self._preloaded() | {"FAULT_LOG": str(log)})
        assert run.code == 0 and not run.wrong, run
        calls = collections.Counter(log.read_text().splitlines())
        most: dict[str, int] = {}
        for line, count in calls.items():
            site = line.partition(" ")[2]
            most[site] = max(most.get(site, 0), count)
        return most

    def _preloaded(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._injector),
            "FAULT_ROOT": str(self.folder),
            "FAULT_JOB": self.job.script,
        }

    def hit(self, fault: Fault) -> Run:
        """Runs the job with a fault in it, and says what is wrong afterwards. `struck` is None when it
        did not come to that call."""
        fired = self.folder / "fired"
        fired.unlink(missing_ok=True)
        variables = self._preloaded() | fault.variables(fired)
        run = self.once(lambda *_: None, fault.error == 0, variables)
        run.struck = fault.site if fired.exists() else None
        run.wrong += self.judge_fault(run, fault)
        for name in ("home", "runtime", "tmp"):
            for path in (self.folder / name).iterdir():
                if name != "home":
                    shutil.rmtree(path, ignore_errors=True)
        return run

    def judge_fault(self, run: Run, fault: Fault) -> list[str]:
        if fault.role == "launcher" and PYTHON_STARTS in run.err and run.code == 1:
            return []  # nothing of ours has run yet
        wrong = []
        tracebacks = run.err.count("Traceback") - run.err.count(TORCHRUNS_OWN)
        if tracebacks > 0 and (fault.role in OUR_ROLES or "phantora_ns/" in run.err):
            wrong.append("a traceback")
        if run.code == 0 or run.struck is None or fault.error == 0:
            differences = self.differences(run, False)
            # a run that prints a warning may also have one more in its report
            told = (*COUNTED, "report: warnings") if "warning: " in run.err else COUNTED
            return wrong + [one for one in differences if not one.startswith(told)]
        # 70: without its start-up hook the rank does not lead, and a profile that recorded nothing fails
        right = (1, 70) if self.job.led and fault.role == "rank" else (1,)
        if run.code not in RIGHT_CODES.get(fault.role, right):
            wrong.append(f"exit code {run.code}")
        messages = set(run.messages)  # each rank that meets what stays says it
        if not 1 <= len(messages) <= 2:
            wrong.append(f"{len(messages)} messages")
        words = (os.strerror(fault.error).lower(), *OTHERS_SAY)
        if not any(said in run.err.lower() for said in words):
            wrong.append("the error is not said")
        return wrong


def draw(sites: dict[str, int], seed: str) -> list[Fault]:
    """Each site is hit, several times if it has several calls, in an order that the seed tells."""
    source = random.Random(seed)
    faults = []
    for site, count in sites.items():
        _, call, about = site.split(" ", 2)
        if about == "CODE" and call.startswith("fopen"):  # Python's own start
            continue
        if about.startswith(("pipe:", "socket:")):  # these cannot fail so
            faults.append(Fault(site, 1, 0))
            continue
        if about in ("CODE", "anonymous"):
            some = sorted(source.sample(range(1, count + 1), min(OF_CODE, count)))
        else:
            some = list(range(1, min(EACH, count) + 1))
        for nth in some:
            error = source.choice((*errors_of(call), 0) if nth > 1 else errors_of(call))
            stays = error == errno.ENOSPC and source.random() < 0.3
            faults.append(Fault(site, nth, error, stays))
    source.shuffle(faults)
    return faults
