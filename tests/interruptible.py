"""Why it exists: a shell starts background jobs with SIGINT ignored, and so are all processes below. The
launcher keeps ignored signals, so a test that sends SIGINT first undoes this in its child."""

import signal


def interruptible() -> None:
    """For `preexec_fn` of subprocess.Popen."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
