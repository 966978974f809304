"""`python -m phantora_ns` is `phantora-ns`.

Modules of the current folder and of PYTHONPATH are the job's, not ours (launch/machine/own_python.py).
"""

import signal
import sys


def main() -> int:
    """The command line; returns the exit status. A limit or a disk that fails may come anywhere, also
    while modules are imported; it is one line too."""
    try:
        return _main()
    except (ImportError, MemoryError, OSError, SystemError) as error:
        sys.stderr.write(f"phantora-ns: {_in_words(error)}; see phantora-ns doctor\n")
        return 70


def _in_words(error: BaseException) -> str:
    """What failed, and where: an error that nobody expected."""
    if isinstance(error, MemoryError):
        return "Cannot allocate memory; on this machine"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; {error.filename or 'in a call of our own'}"
    return f"{error or type(error).__name__}; {sys.executable}"


def _main() -> int:
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
