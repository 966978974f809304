"""How our own Python processes are started: the hub, and what writes the traces.

Why it exists: they import from where phantora-ns is installed, whatever lies in the current folder
and whatever PYTHONPATH names. A user's msgpack.py must not run in the hub. So Python is started on
this file with -P (no current folder) and -E (no PYTHONPATH). The user's own site-packages stay,
because phantora-ns may be installed there. As a script this file runs the module named by its first
argument, out of the package that it lies in itself. Rule: it imports only the standard library.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


def own_command(module: str, *arguments: str) -> list[str]:
    """What runs `module` of this package, as `python -m` would, in a process of ours."""
    flags = ["-E", "-P", *(["-B"] if sys.dont_write_bytecode else [])]
    return [sys.executable, *flags, __file__, module, *arguments]


def own_path() -> list[str]:
    """sys.path without the current folder and without the user's PYTHONPATH."""
    foreign = {os.getcwd()}
    if os.environ.get("PYTHONPATH"):
        foreign |= set(map(os.path.realpath, os.environ["PYTHONPATH"].split(os.pathsep)))
    installed = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] * bool(site.ENABLE_USER_SITE)),
    ]
    kept = [entry for entry in sys.path if os.path.realpath(entry) not in foreign]
    return list(dict.fromkeys([*kept, *filter(os.path.isdir, installed), str(_PACKAGE.parent)]))


def _run(arguments: list[str]) -> None:
    import importlib.util
    import runpy
    import signal

    # else Python's own handler prints a traceback wherever the signal comes
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    name, module = _PACKAGE.name, arguments[0]
    spec = importlib.util.spec_from_file_location(
        name, _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)]
    )
    assert spec is not None and spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    sys.path.append(str(_PACKAGE.parent))  # what was installed together with it
    sys.argv = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        sys.exit(
            f"phantora-ns: {error}; for {sys.executable}, which is started without PYTHONPATH; "
            "install phantora-ns and what it needs with pip"
        )
    # a limit, or a disk that fails; SystemError: Python's C code has lost a MemoryError
    except (ImportError, MemoryError, OSError, SystemError) as error:
        what = str(error) or "Cannot allocate memory"
        sys.exit(f"phantora-ns: {module} ends: {what}; on this machine; see phantora-ns doctor")


if __name__ == "__main__":
    _run(sys.argv[1:])
