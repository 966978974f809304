"""Of which kernels the work of a term consists, by libintercept/time/runs.c alone.

The oracle: a list of all kernels. What is packed has the sums of the newest of them, and any first
part of their work has the contention that those kernels have, but for what neighbours exchanged.
"""

import ctypes
from itertools import accumulate

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.intercept.parts import load_part

RUNS, MOVED_NS = 4096, 1000
STUBS = """
#include "base/log.h"
#include <stdlib.h>
void ph_die(const char *format, ...) { (void)format; abort(); }
"""


class Pack(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
    ]


class Kernels:
    """The C library, and the lists of kernels that its numbers stand for."""

    def __init__(self, library):
        self.library, self.known = library, {0: []}
        for function in (library.ph_run_after, library.ph_run_before):
            function.restype = ctypes.c_uint64
        library.ph_run_after.argtypes = [ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64]
        library.ph_run_before.argtypes = [ctypes.c_uint64]
        library.ph_runs_pack.argtypes = [
            ctypes.POINTER(Pack),
            ctypes.c_uint64,
            ctypes.c_int64,
            ctypes.c_int64,
        ]

    def after(self, run, kernels):
        for kernel in kernels:
            before, run = self.known[run], self.library.ph_run_after(run, *kernel)
            self.known[run] = [*before, kernel]
        return run

    def packed(self, run, work, contention):
        pack = Pack()
        self.library.ph_runs_pack(pack, run, work, contention)
        values = msgpack.unpackb(ctypes.string_at(pack.data, pack.length))
        self.library.ph_pack_free(ctypes.byref(pack))
        return list(zip(values[::2], values[1::2], strict=True))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return Kernels(load_part(folder, ["time/runs.c", "base/msgpack.c"], STUBS))


def sums(pairs):
    return [sum(values) for values in zip(*pairs)] if pairs else [0, 0]


def contention_of_first(pairs, work):
    """Contention in the first `work` ns of kernels."""
    total = 0.0
    for length, contention in pairs:
        part = min(work, length)
        total += contention * part / length if length else contention
        work -= part
    return total


KERNELS = st.lists(
    st.integers(1, 400_000).flatmap(lambda work: st.tuples(st.just(work), st.integers(0, work))),
    max_size=30,
)


@given(KERNELS, KERNELS, KERNELS, st.data())
def test_packed_is_what_a_list_of_all_kernels_says(kernels, first, second, third, data):
    """Two expressions go on from a copy of one."""
    common = kernels.after(0, first)
    runs = [kernels.after(common, second), kernels.after(common, third)]
    for run, then in zip(runs, (second, third)):
        all_of_it = first + then
        newest = all_of_it[data.draw(st.integers(0, len(all_of_it))) :]
        packed = kernels.packed(run, *sums(newest))
        assert sums(packed) == sums(newest)
        for work in accumulate(length for length, _ in newest):
            moved = contention_of_first(packed, work) - contention_of_first(newest, work)
            assert abs(moved) <= MOVED_NS * len(newest)
        if then:
            assert kernels.known[kernels.library.ph_run_before(run)] == all_of_it[:-1]


def test_neighbours_of_one_rate_are_packed_as_one_and_others_are_not(kernels):
    run = kernels.after(0, [(30_000, 6_000), (60_000, 12_000), (50_000, 0), (1_000, 1_000)])
    assert kernels.packed(run, 141_000, 19_000) == [(90_000, 18_000), (51_000, 1_000)]


def test_what_is_too_old_is_packed_as_one(kernels):
    run = kernels.after(0, [(10_000, 10_000 * (number % 2)) for number in range(RUNS + 100)])
    packed = kernels.packed(run, 10_000 * (RUNS + 100), 10_000 * (RUNS + 100) // 2)
    assert sums(packed) == [10_000 * (RUNS + 100), 5_000 * (RUNS + 100)]
    assert packed[0][0] >= 100 * 10_000
    assert packed[-4:] == [(10_000, 0), (10_000, 10_000)] * 2


def test_unknown_kernels_count_as_one(kernels):
    assert kernels.packed(0, 50, 20) == [(50, 20)]
    run = kernels.after(0, [(10, 10)])
    assert sums(kernels.packed(run, 100_000, 10)) == [100_000, 10]
    assert sums(kernels.packed(run, 5, 3)) == [5, 3]
