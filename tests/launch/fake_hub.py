"""A hub without simulation, for tests of the launcher alone: binds nothing, says ready, writes hub.json on SIGTERM."""

import json
import os
import signal
import sys

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(1, b"ready\n")
signal.sigwait([signal.SIGTERM])
with open(os.path.join(sys.argv[1], "hub.json"), "w") as file:
    json.dump({}, file)
