"""`python -m phantora_ns` is `phantora-ns`.

Modules of the current folder and of PYTHONPATH are the job's, not ours (launch/machine/own_python.py).
"""

import sys

from phantora_ns.launch.machine.own_python import own_path


def main() -> int:
    """The command line; returns the exit status."""
    sys.path[:] = own_path()
    from phantora_ns.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
