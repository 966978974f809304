"""Why it exists: machines on which something is small, missing or of an odd name. Each is a command that
a run is started by, and variables; a run there ends well, or with one line that names the cause."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """`within`: the command that makes it; `code`: how the run ends there; `says`: what it must say."""

    within: Sequence[str] = ()
    variables: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 0
    says: str = ""


def limited(words: str, code: int = 0, says: str = "") -> Machine:
    """With limits of the shell."""
    return Machine(("sh", "-c", f'ulimit {words}; exec "$@"', "sh"), {}, code, says)


def busy(machine: Machine) -> Machine:
    """Where one rank computes until something ends it."""
    return replace(machine, variables={"JOB_BUSY_RANK": "1"})


def memory_groups() -> Path | None:
    """The control group of this process where groups with a limit of memory can be made; None: they cannot."""
    own = {
        controllers: path.lstrip("/")
        for _, controllers, path in (
            line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()
        )
    }
    first = Path("/sys/fs/cgroup/memory", own["memory"]) if "memory" in own else None
    second = Path("/sys/fs/cgroup", own.get("", ""))
    control = second / "cgroup.subtree_control"
    if first is None and control.is_file() and "memory" in control.read_text().split():
        first = second
    return first if first is not None and os.access(first, os.W_OK) else None


def one_gigabyte(groups: Path) -> Machine:
    """Where one rank takes memory until the kernel kills it."""
    group = groups / f"phantora-test-{os.getpid()}"
    limit = (
        "memory.max" if (groups / "cgroup.subtree_control").exists() else "memory.limit_in_bytes"
    )
    script = (
        f"set -e; mkdir {group}; echo 1000000000 >{group}/{limit}; set +e; "
        f'(echo 0 >{group}/cgroup.procs; exec "$@"); code=$?; rmdir {group}; exit $code'
    )
    says = "rank 1 was killed by SIGKILL; the kernel has killed a process of this machine for lack of memory"
    return Machine(("sh", "-c", script, "sh"), {"JOB_HUNGRY_RANK": "1"}, 1, says)


def mounted(script: str, code: int = 0, says: str = "") -> Machine:
    """With other mounts, for which an ordinary user needs a user namespace."""
    script = f'set -e; mount --make-rprivate /; {script}; exec "$@"'
    own = ("--user", "--map-root-user") if os.geteuid() else ()
    return Machine(("unshare", *own, "--mount", "sh", "-c", script, "sh"), {}, code, says)


def machines(folder: Path) -> dict[str, Machine]:
    """By name. `folder` holds tmp, runtime, home and reports of the run."""
    small = "mount -t tmpfs -o size={} none {}"
    read_only = "mount --bind {0} {0}; mount -o remount,ro,bind {0}"
    no_namespaces = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    found = {
        "6 files": limited("-n 6", 2, "ulimit -Hn"),
        "64 files": limited("-n 64", 2, "ulimit -Hn"),
        "files of 512 bytes": limited("-f 1", 70, "File too large"),
        "files of 128 KiB": limited("-f 256", 70, "raise ulimit -f"),
        "1 GB of addresses": limited("-v 1000000", 1, "ulimit -v"),
        "8 GB of addresses": limited("-v 8000000", 1, "ulimit -v"),
        "20 MB of data": limited("-d 20000", 70, "Cannot allocate memory"),
        "200 MB of data": limited("-d 200000", 1, "Cannot allocate memory"),
        "256 KiB of stack": limited("-s 256"),
        "no locked memory, no core": limited("-l 0 -c 0"),
        # less might end the launcher, which says nothing when it is killed
        "a warning after 4 seconds of CPU": busy(
            limited("-S -t 4", 1, "killed by SIGXCPU; a process may use 4 s")
        ),
        "4 seconds of CPU": busy(
            limited("-t 4", 1, "a process may use 4 s of CPU time here: raise ulimit -t")
        ),
        "no resident memory limit": limited("-m 1000"),
        "no priorities": Machine(("prlimit", "--nice=0", "--rtprio=0")),
        "no pending signals": Machine(("prlimit", "--sigpending=0")),
        "no locks, no queues": Machine(("prlimit", "--locks=0", "--msgqueue=0")),
        "4 KiB of /dev/shm": mounted(small.format("4k", "/dev/shm")),
        "64 KiB for the run": mounted(
            small.format("64k", folder / "runtime"), 70, "No space left on device"
        ),
        "4 MiB for the run": mounted(small.format("4m", folder / "runtime")),
        "no room for the report": mounted(
            small.format("4k", folder / "reports") + f"; printf x >{folder}/reports/x",
            70,
            "cannot write the report: No space left on device",
        ),
        "a report's folder to read": mounted(
            read_only.format(folder / "reports"), 2, "cannot be written"
        ),
        "a home to read": mounted(read_only.format(folder / "home")),
        "no namespaces": Machine(
            ("unshare", "--user", "--map-root-user", "sh", "-c", no_namespaces, "sh"),
            {},
            70,
            "user namespaces are switched off",
        ),
        "a home that is missing": Machine((), {"HOME": "/nonexistent/home"}),
        "a home that is a file": Machine((), {"HOME": "/etc/passwd"}),
        "a home without a path": Machine((), {"HOME": ""}),
        "a home of other letters": Machine((), {"HOME": os.fsencode(folder) + b"/home/\xff"}),
        "no folder for files": Machine((), {"TMPDIR": "/nonexistent", "XDG_RUNTIME_DIR": ""}),
        "no standard error": Machine(("sh", "-c", 'exec 2>&-; exec "$@"', "sh")),
        "a full standard error": Machine(("sh", "-c", 'exec 2>/dev/full; exec "$@"', "sh")),
        "a locale without UTF-8": Machine((), {"LC_ALL": "C", "PYTHONUTF8": "0"}),
    }
    names = {
        "spaces": b"a b",
        "100 letters": b"l" * 100,
        "other letters": b"n\xff",
        "a colon": b"a:",
    }
    if (groups := memory_groups()) is not None:
        found["one gigabyte of memory"] = one_gigabyte(groups)
    for what, name in names.items():
        path = os.path.join(os.fsencode(folder / "tmp"), name)
        os.makedirs(path, exist_ok=True)
        found[f"TMPDIR with {what}"] = Machine((), {"TMPDIR": path, "XDG_RUNTIME_DIR": ""})
        found[f"XDG_RUNTIME_DIR with {what}"] = Machine((), {"XDG_RUNTIME_DIR": path})
    return found
