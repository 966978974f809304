"""`python -m phantora_ns` is `phantora-ns`.

Modules of the current folder and of PYTHONPATH are the job's, not ours (launch/machine/own_python.py).
"""

import signal
import sys


def main() -> int:
    """The command line; returns the exit status."""
    # until commands handle it: else a Ctrl-C meanwhile prints a traceback
    ends_us = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends_us:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from phantora_ns.launch.machine.own_python import own_path

    sys.path[:] = own_path()
    from phantora_ns.cli import main as command_line

    if ends_us:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
