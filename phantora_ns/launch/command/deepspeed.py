"""The command line of DeepSpeed's launcher, which says how large the cluster is.

Why it exists: importing DeepSpeed to read it would cost seconds and tie the launcher to the job's
interpreter. So its options are listed here (facts of deepspeed/launcher/runner.py, release 0.19.8;
a test compares the list with the installed DeepSpeed), spelled as in argparse
(launcher_options.py). No variables stand in for options. Rule: the command line is never changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phantora_ns.launch.command.launcher_options import Launcher
from phantora_ns.launch.errors import UsageError

VALUE_OPTIONS = frozenset(
    {
        "hostfile",
        "include",
        "exclude",
        "num_nodes",
        "num_gpus",
        "num_accelerators",
        "master_port",
        "master_addr",
        "node_rank",
        "launcher",
        "launcher_args",
        "enable_each_rank_log",
        "autotuning",
        "bind_core_list",
        "ssh_port",
        "venv_script",
        "log_level",
    }
)
FLAG_OPTIONS = frozenset(
    {
        "module",
        "no_python",
        "no_local_rank",
        "no_ssh",
        "no_ssh_check",
        "force_multi",
        "save_pid",
        "bind_cores_to_rank",
        "quiet",
        "help",
    }
)
SHORT_OPTIONS = {"H": "hostfile", "i": "include", "e": "exclude", "q": "quiet", "h": "help"}
SAME = {"num_accelerators": "num_gpus"}
LAUNCHER = Launcher("deepspeed", VALUE_OPTIONS, FLAG_OPTIONS, SHORT_OPTIONS, SAME)
HOSTFILE = "/job/hostfile"  # DLTS_HOSTFILE


@dataclass(frozen=True)
class DeepSpeedOptions:
    """What the user passed (option -> text, "" for flags), the script, and the job's hosts (name ->
    slots).

    `hosts` is empty without a hostfile: the job then runs on the node on which it is started.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None
    hosts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def spreads(self) -> bool:
        """Whether the launcher itself starts the job on the other hosts."""
        return (
            (len(self.hosts) > 1 or "force_multi" in self.given)
            and bool(self.hosts)
            and "no_ssh" not in self.given
        )


def _number(given: Mapping[str, str], name: str) -> int | None:
    """The value of a numeric option; None where DeepSpeed ignores it (its default is -1)."""
    text = given.get(name, "-1")
    if not re.fullmatch(r"-?\d+", text):
        raise UsageError(f"--{name} {text!r} is not a number; in the command; give one")
    return int(text) if int(text) > 0 else None


def _read_hosts(path: str) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    try:
        with open(path) as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--hostfile {path} cannot be read: {error}; in the command; correct it"
        ) from error
    for line in lines:
        found = re.match(r"(\S+)\s+slots=(\d{1,4})(?!\d)", line)
        if line and not line.startswith("#"):
            if not found or found[1] in hosts:
                raise UsageError(
                    f"--hostfile {path}: {line!r:.200} is no new host with slots; in that file; write NAME slots=8"
                )
            hosts[found[1]] = list(range(int(found[2])))
    if not hosts:
        raise UsageError(f"--hostfile {path} names no host; in that file; write NAME slots=8")
    return hosts


def _filtered(
    hosts: Mapping[str, Sequence[int]], include: str, exclude: str
) -> dict[str, list[int]]:
    """The hosts and slots that --include or --exclude (NAME[:SLOT,...]@...) leaves. A slot that does
    not exist is left to DeepSpeed's own check."""
    chosen: dict[str, set[int]] = {}
    for part in (include or exclude).split("@"):
        name, colon, slots = part.partition(":")
        if name not in hosts or not re.fullmatch(r"\d+(,\d+)*" if colon else "", slots):
            raise UsageError(
                f"--{'include' if include else 'exclude'}: {part!r} is no host (with slots) of the job; in the "
                f"command; write NAME:0,1 of {', '.join(hosts)}"
            )
        chosen.setdefault(name, set()).update(map(int, slots.split(",")) if colon else hosts[name])
    left = {
        name: sorted(chosen.get(name, ()))
        if include
        else [slot for slot in slots if slot not in chosen.get(name, ())]
        for name, slots in hosts.items()
    }
    return {name: slots for name, slots in left.items() if slots}


def parse_deepspeed(arguments: Sequence[str]) -> DeepSpeedOptions:
    """Reads the launcher's arguments up to the script, and the hostfile. Raises UsageError for
    arguments that the launcher would refuse, too."""
    given, script = LAUNCHER.read(arguments)
    path = given.get("hostfile", HOSTFILE)
    # Without the file, DeepSpeed warns and goes on with one node.
    hosts = _read_hosts(path) if os.path.isfile(path) else {}
    nodes, gpus = _number(given, "num_nodes"), _number(given, "num_gpus")
    if given.get("include") or given.get("exclude"):
        if (
            "num_nodes" in given
            or "num_gpus" in given
            or (given.get("include") and given.get("exclude"))
        ):
            raise UsageError(
                "--include, --exclude and --num_nodes or --num_gpus exclude each other; in the command; keep one"
            )
        if hosts:
            hosts = _filtered(hosts, given.get("include", ""), given.get("exclude", ""))
    if not hosts and nodes is not None and nodes > 1:
        raise UsageError(
            f"--num_nodes {nodes} needs a hostfile; in the command; add --hostfile FILE with lines such as "
            "node-0 slots=8"
        )
    names = list(hosts)[:nodes]
    return DeepSpeedOptions(
        given, script, {name: range(gpus) if gpus else hosts[name] for name in names}
    )


def node_count(options: DeepSpeedOptions) -> int | None:
    """Nodes of the job; None when the command leaves it open."""
    return len(options.hosts) or None


def processes_per_node(options: DeepSpeedOptions) -> int | None:
    """GPUs that the job uses on each node; None: all that it has. Raises UsageError when the hosts
    differ."""
    if not options.hosts:
        return _number(options.given, "num_gpus")
    counts = {len(slots) for slots in options.hosts.values()}
    if len(counts) > 1:
        raise UsageError(
            f"the hosts have {' and '.join(map(str, sorted(counts)))} slots; in the hostfile or the command; give "
            "all nodes as many"
        )
    return max(slot for slots in options.hosts.values() for slot in slots) + 1
