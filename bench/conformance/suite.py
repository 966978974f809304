"""Runs PyTorch's DistributedTest, as the installed torch package has it, on the GPUs that are there,
and writes one JSON line for each test. It is what `run.py` starts under phantora-ns; it needs the
package expecttest.

    suite.py RESULTS [PATTERN...]

A pattern is a regular expression that is found in a test's name.
"""

import json
import os
import re
import sys
import tempfile
import time
import unittest

WORLD = 2
os.environ.setdefault("BACKEND", "nccl")
os.environ.setdefault("WORLD_SIZE", str(WORLD))
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="distributed-test-"))

import torch  # noqa: E402
from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402

if torch.backends.cuda.is_built():
    torch.backends.cuda.matmul.allow_tf32 = False  # the CPU, which computes values, has none


class Spawned(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    """Each test in processes of its own, which are spawned."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


class Lines(unittest.TestResult):
    """Writes {"name", "outcome", "seconds", "words"} for each test at its end."""

    def __init__(self, path):
        super().__init__()
        self._file = open(path, "a", buffering=1)
        self._begin = 0.0

    def _write(self, test, outcome, words=""):
        line = {
            "name": test.id().rpartition(".")[2],
            "outcome": outcome,
            "seconds": round(time.monotonic() - self._begin, 1),
            "words": words[-4000:],
        }
        self._file.write(json.dumps(line) + "\n")

    def startTest(self, test):
        super().startTest(test)
        self._begin = time.monotonic()

    def addSuccess(self, test):
        self._write(test, "passed")

    def addSkip(self, test, reason):
        self._write(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._write(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        self._write(test, "failed", self._exc_info_to_string(err, test))

    def addExpectedFailure(self, test, err):
        self._write(test, "passed", "as expected, it fails")

    def addUnexpectedSuccess(self, test):
        self._write(test, "failed", "it was expected to fail")


def main():
    path, patterns = sys.argv[1], sys.argv[2:]
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Spawned)
    if patterns:
        tests = [test for test in tests if any(re.search(one, test.id()) for one in patterns)]
    result = Lines(path)
    unittest.TestSuite(tests).run(result)
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(main())
