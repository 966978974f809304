"""A hub without simulation, for tests of the launcher alone: says ready, and on SIGTERM writes
hub.json.

PHANTORA_TEST_HUB in its environment makes it one that fails.
"""

import json
import os
import signal
import sys

how = os.environ.get("PHANTORA_TEST_HUB", "")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
if how == "dies":
    sys.exit(3)
if how != "silent":
    os.write(1, b"ready\n")
signal.sigwait([signal.SIGTERM])
if how == "slow":  # as one with much to write on a busy machine
    print("the hub writes", file=sys.stderr, flush=True)
    signal.sigwait([signal.SIGUSR1])
if how == "full":
    sys.exit(1)
with open(os.path.join(sys.argv[1], "hub.json"), "w") as file:
    json.dump({}, file)
