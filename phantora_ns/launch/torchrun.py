"""Why it exists: `torchrun`'s command line says how large the cluster is, and must be read without being changed.

Importing torch to read it would cost two seconds and tie the launcher to torch's own interpreter, so the options that
torchrun knows are listed here (facts of torch/distributed/run.py, releases 2.4 to 2.11; a test compares the list with the
installed torch). Spellings are argparse's: `--name value`, `--name=value`, `-r3`, dashes or underscores, unique prefixes.
An option that is not given falls back to the variable PET_NAME, as in torchrun.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phantora_ns.launch.errors import UsageError

VALUE_OPTIONS = frozenset({
    "nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts", "monitor_interval",
    "start_method", "event_log_handler", "role", "log_dir", "redirects", "tee", "local_ranks_filter",
    "duplicate_stdout_filters", "duplicate_stderr_filters", "node_rank", "master_addr", "master_port", "local_addr",
    "logs_specs", "numa_binding", "signals_to_handle"})
FLAG_OPTIONS = frozenset({"standalone", "module", "no_python", "run_path", "virtual_local_rank", "use_env", "help"})
SHORT_OPTIONS = {"m": "module", "r": "redirects", "t": "tee", "h": "help"}


@dataclass(frozen=True)
class TorchrunOptions:
    """What the user passed (`given`: option -> text, "" for flags), the outer PET_* variables, and the script's position."""

    given: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None

    def get(self, name: str, default: str = "") -> str:
        """The value that torchrun would use for `name`, in its underscore spelling."""
        return self.given.get(name, self.inherited.get(name, default))

    def has(self, name: str) -> bool:
        """Whether the command line itself says `name`; what the environment says may be replaced."""
        return name in self.given

    def flag(self, name: str) -> bool:
        """Whether the flag `name` is set, on the command line or by PET_NAME."""
        return name in self.given or self.inherited.get(name, "0") not in ("", "0")


def _resolve(name: str, argument: str) -> str:
    """Full name of a long option from what was typed, as argparse does: exact, else a unique prefix."""
    typed = name.replace("-", "_")
    known = VALUE_OPTIONS | FLAG_OPTIONS
    if typed in known:
        return typed
    matches = sorted(option for option in known if option.startswith(typed)) if typed else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"torchrun option {argument!r} could be --{', --'.join(matches).replace('_', '-')}; in the command; "
                         "write it in full")
    raise UsageError(f"unknown torchrun option {argument!r}; in the command; correct it, or put it after the script if it "
                     "belongs to the script (phantora-ns's own options come before torchrun)")


def parse_torchrun(arguments: Sequence[str], environment: Mapping[str, str]) -> TorchrunOptions:
    """Reads torchrun's arguments up to the script. Raises UsageError for options that it does not know or that lack a value."""
    given: dict[str, str] = {}
    script = None
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            script = arguments[position] if position < len(arguments) else None
            break
        if not argument.startswith("-") or argument == "-":
            script = argument
            break
        if argument.startswith("--"):
            typed, equals, value = argument[2:].partition("=")
            name = _resolve(typed, argument)
        else:
            letter, value = argument[1], argument[2:]
            if letter not in SHORT_OPTIONS:
                raise UsageError(f"unknown torchrun option {argument!r}; in the command; correct it")
            name, equals = SHORT_OPTIONS[letter], "=" if value else ""
            value = value.removeprefix("=")
        if name in FLAG_OPTIONS:
            if equals:
                raise UsageError(f"torchrun option {argument!r} takes no value; in the command; remove it")
            given[name] = ""
            continue
        if not equals:
            if position == len(arguments):
                raise UsageError(f"torchrun option {argument!r} lacks its value; at the end of the command; add it")
            value = arguments[position]
            position += 1
        given[name] = value
    inherited = {name: environment[f"PET_{name.upper()}"] for name in VALUE_OPTIONS | FLAG_OPTIONS
                 if f"PET_{name.upper()}" in environment}
    return TorchrunOptions(given, inherited, script)


def node_count(options: TorchrunOptions) -> int | None:
    """Nodes that --nnodes asks for, None when it is not given. Raises UsageError for an elastic range or nonsense."""
    text = options.get("nnodes")
    if not text:
        return None
    low, colon, high = text.partition(":")
    if colon and low != high and low.isdigit() and high.isdigit():
        raise UsageError(f"--nnodes {text} is an elastic range; in the command; a simulated cluster has a fixed size: "
                         f"--nnodes {high}")
    if not low.isdigit() or (colon and not high.isdigit()) or int(low) < 1:
        raise UsageError(f"--nnodes {text!r} is not a number of nodes; in the command; give one, such as --nnodes 2")
    return int(low)


def processes_per_node(options: TorchrunOptions) -> int | None:
    """Workers that each node starts; None: as many as the node has GPUs. Raises UsageError for nonsense."""
    text = options.get("nproc_per_node", "1")
    if text in ("gpu", "auto"):
        return None
    if text in ("cpu", "xpu"):
        raise UsageError(f"--nproc-per-node {text} counts this machine's devices, not the simulated ones; in the command; "
                         "give a number, or gpu")
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--nproc-per-node {text!r} is not a number of processes; in the command; give one, such as 8, or gpu")
    return int(text)
