"""torchrun's command line, which says how large the cluster is.

Why it exists: importing torch to read it would cost two seconds and tie the launcher to torch's
interpreter. So the options that torchrun knows are listed here (facts of torch/distributed/run.py,
releases 2.4 to 2.11; a test compares the list with the installed torch). They may be spelled with
dashes or underscores, otherwise as in argparse (launcher_options.py). As in torchrun, the variable
PET_NAME stands in for an option that is not given. Rule: the command line is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phantora_ns.launch.command.launcher_options import Launcher
from phantora_ns.launch.errors import UsageError

VALUE_OPTIONS = frozenset(
    {
        "nnodes",
        "nproc_per_node",
        "rdzv_backend",
        "rdzv_endpoint",
        "rdzv_id",
        "rdzv_conf",
        "max_restarts",
        "monitor_interval",
        "start_method",
        "event_log_handler",
        "role",
        "log_dir",
        "redirects",
        "tee",
        "local_ranks_filter",
        "duplicate_stdout_filters",
        "duplicate_stderr_filters",
        "node_rank",
        "master_addr",
        "master_port",
        "local_addr",
        "logs_specs",
        "numa_binding",
        "signals_to_handle",
        # later than torch 2.9
        "log_line_prefix_template",
        "print_completion",
        "shutdown_timeout",
    }
)
FLAG_OPTIONS = frozenset(
    {"standalone", "module", "no_python", "run_path", "virtual_local_rank", "use_env", "help"}
)
SHORT_OPTIONS = {"m": "module", "r": "redirects", "t": "tee", "h": "help"}
LAUNCHER = Launcher("torchrun", VALUE_OPTIONS, FLAG_OPTIONS, SHORT_OPTIONS, dashes=True)


@dataclass(frozen=True)
class TorchrunOptions:
    """`given`: what the user passed (option -> text, "" for flags). `inherited`: what PET_*
    variables around us say."""

    given: Mapping[str, str] = field(default_factory=dict)
    inherited: Mapping[str, str] = field(default_factory=dict)
    script: str | None = None

    def get(self, name: str, default: str = "") -> str:
        """The value that torchrun would use for `name`, in its underscore spelling."""
        return self.given.get(name, self.inherited.get(name, default))

    def has(self, name: str) -> bool:
        """Whether the command line itself has `name`. What the environment says may be replaced."""
        return name in self.given

    def flag(self, name: str) -> bool:
        """Whether the flag `name` is set, on the command line or by PET_NAME."""
        return name in self.given or self.inherited.get(name, "0") not in ("", "0")


def parse_torchrun(arguments: Sequence[str], environment: Mapping[str, str]) -> TorchrunOptions:
    """Reads torchrun's arguments up to the script. Raises UsageError for options that it does not
    know or that lack a value."""
    given, script = LAUNCHER.read(arguments)
    inherited = {
        name: environment[f"PET_{name.upper()}"]
        for name in VALUE_OPTIONS | FLAG_OPTIONS
        if f"PET_{name.upper()}" in environment
    }
    return TorchrunOptions(given, inherited, script)


def node_count(options: TorchrunOptions) -> int | None:
    """Nodes that --nnodes asks for, None when it is not given. Raises UsageError for an elastic
    range or nonsense."""
    text = options.get("nnodes")
    if not text:
        return None
    low, colon, high = text.partition(":")
    if colon and low != high and low.isdigit() and high.isdigit():
        raise UsageError(
            f"--nnodes {text} is an elastic range; in the command; a simulated cluster has a fixed size: "
            f"--nnodes {high}"
        )
    if not low.isdigit() or (colon and not high.isdigit()) or int(low) < 1:
        raise UsageError(
            f"--nnodes {text!r} is not a number of nodes; in the command; give one, such as --nnodes 2"
        )
    return int(low)


def processes_per_node(options: TorchrunOptions) -> int | None:
    """Workers that each node starts; None: as many as the node has GPUs. Raises UsageError for
    nonsense."""
    text = options.get("nproc_per_node", "1")
    if text in ("gpu", "auto"):
        return None
    if text in ("cpu", "xpu"):
        raise UsageError(
            f"--nproc-per-node {text} counts this machine's devices, not the simulated ones; in the command; "
            "give a number, or gpu"
        )
    if not text.isdigit() or int(text) < 1:
        raise UsageError(
            f"--nproc-per-node {text!r} is not a number of processes; in the command; give one, such as 8, or gpu"
        )
    return int(text)
