"""The warm start of the job's Pythons (docs/warm-start.md): what the image of a warmed Python imports.

Why it exists: the interceptor makes the image when the first rank starts, and reads here, through
the environment, which modules it holds. Rule: a module is on the list only if its import starts no
thread, uses no GPU, opens no file and prints nothing; what breaks that rule is found when the image
is made, and then only torch is in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from phantora_ns.launch.errors import UsageError

FOLDER = "warm"
"""In the run directory: images, and `starts`, one line for each process that could have used one."""

MODULES = (
    "torch",
    "torch.distributed.run",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.checkpoint",
    "torch.utils.data",
    "torch._dynamo",
)
"""What training scripts import beside torch, and torch by itself in the first step: an optimizer's
`step` imports torch._dynamo."""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def check(text: str | None) -> tuple[str, ...]:
    """The modules of --preload-modules. Raises UsageError."""
    names = tuple(name for name in (text or "").split(",") if name)
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--preload-modules: {name!r} is not the name of a module; on the command line; "
                "write names with commas between them, such as transformers,einops"
            )
    return names


def prepare(run_dir: Path, modules: Sequence[str] | None) -> dict[str, str]:
    """Makes the folder of images; returns the variables of the job. `modules`: those to import beside
    ours; None: no warm start. Raises OSError."""
    if modules is None:
        return {}
    (run_dir / FOLDER).mkdir(mode=0o700)
    return {"PHANTORA_WARM": ",".join(dict.fromkeys((*MODULES, *modules)))}
