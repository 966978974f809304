"""How long compute will wait for communication, by libintercept/time/gaps.c alone.

The oracle: a job whose steps are alike waits as long as the step before did.
"""

import ctypes

import msgpack
import pytest
from tests.intercept.parts import load_part

STUBS = """
#include "base/log.h"
#include "time/gaps.h"
#include <stdlib.h>
void ph_die(const char *format, ...) { (void)format; abort(); }
static int64_t longer_ns[2];
static void longer(int device, int64_t ns) { longer_ns[device] += ns; }
int64_t total_longer(int device) { return longer_ns[device]; }
void told(unsigned char *data, size_t length)
{
    struct ph_reply reply = {.data = data, .length = length};
    ph_gaps_told_locked(&reply, longer);
    if (reply.bad || reply.at != length) abort();
}
"""


@pytest.fixture
def gaps(tmp_path):
    library = load_part(tmp_path, ["time/gaps.c", "base/msgpack.c"], STUBS)
    library.ph_gaps_launch_locked.argtypes = [ctypes.c_uint64]
    library.ph_gaps_expected_locked.argtypes = [ctypes.c_int, ctypes.c_uint64]
    for function in (library.ph_gaps_expected_locked, library.ph_gaps_launch_locked):
        function.restype = ctypes.c_uint64
    library.total_longer.restype = ctypes.c_int64
    return library


def tell(gaps, first, waits):
    data = msgpack.packb(first) + msgpack.packb(waits)
    gaps.told(data, len(data))


def step(gaps, waits):
    found = [gaps.ph_gaps_expected_locked(0, 0) for _ in range(waits)]
    gaps.ph_gaps_step_locked()
    return found


def test_a_step_waits_like_the_one_before(gaps):
    assert step(gaps, 3) == [0, 0, 0]
    tell(gaps, 0, [5, 10**12, 7])
    assert step(gaps, 3) == [5, 10**12, 7]
    tell(gaps, 3, [6])
    assert step(gaps, 4) == [6, 10**12, 7, 0]
    tell(gaps, 4, [8, 9, 1, 2, 3, 4])
    assert step(gaps, 4) == [1, 2, 3, 4]


def test_without_steps_a_synchronisation_ends_one(gaps):
    for told in ([0, 0], [3, 4], [3, 4]):
        assert [gaps.ph_gaps_expected_locked(0, 0) for _ in range(2)] == told
        tell(gaps, 0, [3, 4])
        gaps.ph_gaps_synchronized_locked()
    step(gaps, 1)  # from now on steps are known
    assert gaps.ph_gaps_expected_locked(0, 0) == 3
    gaps.ph_gaps_synchronized_locked()
    assert gaps.ph_gaps_expected_locked(0, 0) == 4


def test_what_is_too_old_or_was_never_asked_is_ignored(gaps):
    tell(gaps, 0, [9] * 10)
    assert step(gaps, 5000) == [0] * 5000
    tell(gaps, 5000 - 4097, [1, 2])
    tell(gaps, 4999, [3, 4])
    tell(gaps, 1 << 60, [5])
    assert step(gaps, 5000) == [0] * 904 + [2] + [0] * 4094 + [3]


def test_a_step_of_more_waits_than_are_kept_expects_none_beyond(gaps):
    step(gaps, 9000)
    tell(gaps, 9000 - 4096, [1] * 4096)
    found = step(gaps, 9000)
    assert found[4904:8191] == [1] * 3287 and not any(found[:4904]) and not any(found[8191:])


def launches(gaps, waited_for):
    """A step that launches communication, and waits for some of it: [whether, ...]."""
    found = []
    for waits in waited_for:
        launches.vertex += 1
        found.append(gaps.ph_gaps_launch_locked(launches.vertex))
        if waits:
            gaps.ph_gaps_expected_locked(0, launches.vertex)
    gaps.ph_gaps_step_locked()
    return found


launches.vertex = 0


def test_a_launch_is_waited_for_as_long_as_in_the_last_step(gaps):
    assert launches(gaps, [False, True, True]) == [0, 0, 0]
    tell(gaps, 0, [5, 7])
    assert launches(gaps, [False, True, True]) == [0, 5, 7]
    tell(gaps, 2, [0, 8])
    assert launches(gaps, [True, True, True, True]) == [0, 0, 8, 0]
    tell(gaps, 4, [1, 2, 3, 4])
    assert launches(gaps, [False] * 5) == [1, 2, 3, 4, 0]


def test_a_wait_for_something_else_says_nothing_of_launches(gaps):
    assert gaps.ph_gaps_launch_locked(3) == 0
    gaps.ph_gaps_expected_locked(0, 2)
    gaps.ph_gaps_expected_locked(0, 0)
    tell(gaps, 0, [5, 6])
    gaps.ph_gaps_step_locked()
    assert gaps.ph_gaps_launch_locked(4) == 0


def test_what_was_foretold_wrongly_is_said(gaps):
    """Foretold and said later together are what the waits took, on each device."""
    took = {0: 0, 1: 0}
    foretold = {0: 0, 1: 0}
    number = 0
    for waits in ([5, 10**12, 7], [6, 2, 7], [1, 1, 10**12]):
        for device, ns in enumerate(waits):
            took[device % 2] += ns
            foretold[device % 2] += gaps.ph_gaps_expected_locked(device % 2, 0)
        gaps.ph_gaps_step_locked()
        tell(gaps, number, waits)
        number += len(waits)
        for device in (0, 1):
            assert foretold[device] + gaps.total_longer(device) == took[device]
