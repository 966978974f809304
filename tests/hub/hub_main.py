"""The hub as it is, with kernel times that a test can foresee: 1,000 ns per element of the first
field, source "law".

Why it exists: the hub's tests are about messages and times, not about the database that ships with
the project.
"""

import sys

import phantora_ns.kernels.lookup


class ForeseeableTimes:
    """lookup: duration 1,000 ns + the number of fields, source 2, compute-bound when the kind is a
    GEMM."""

    def __init__(self, gpu, databases, versions=None, fits=None) -> None:
        self.versions, self.other_versions = versions, ()
        self.asked = 0
        self.scaled, self.renamed, self.scaled_from, self.unmeasured = 0, 0, None, False

    def recorded_elsewhere(self, kind, fields):
        return False

    def lookup(self, kind, fields, context=None, parameters=None):
        self.asked += 1
        return 1000 + len(fields) + (0 if context is None else 100), 2, int(kind == 1)


phantora_ns.kernels.lookup.KernelTimes = ForeseeableTimes

from phantora_ns.hub.__main__ import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
