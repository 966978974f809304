"""What a power limit does to kernel times, by libintercept/time/power.c alone: the laws of the model,
not its numbers.

A GPU that is never waited for keeps what it has; one that has computed all the time takes the
recorded times, one that idles is faster by its class's gain, in between nothing jumps, and what
memory decides never changes.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.model.power import VARIATIONS, Power

ROOT = Path(__file__).resolve().parents[2]
STUBS = """
#include "base/fork.h"
#include "time/power.h"
static void (*forget)(void);
void ph_forget_in_child(void (*function)(void)) { forget = function; }
static struct ph_device_spec spec;
const struct ph_device_spec *ph_spec(void) { return &spec; }
int ph_device_physical(int device) { return device; }
void set(int64_t *numbers)
{
    struct ph_power *power = &spec.power;
    power->low_permille = numbers[0], power->full_permille = numbers[1], power->window_ns = numbers[2];
    for (int i = 0; i < PH_BOUND_BY_COUNT; i++) {
        power->weight_permille[i] = numbers[3 + i];
        power->gain_permille[i] = numbers[6 + i];
    }
    for (int i = 0; i < PH_GPU_VARIATIONS; i++) power->variation_permille[i] = numbers[9 + i];
    if (forget) forget();
}
"""
MODEL = Power(
    low=500,
    full=800,
    window_ns=100_000_000,
    weights=(600, 1000, 900),
    gains=(0, 200, 100),
    recorded=0,
    spread=20,
)
MEMORY, COMPUTE, ATTENTION = range(3)


@pytest.fixture(scope="module")
def power(tmp_path_factory):
    folder = tmp_path_factory.mktemp("power")
    (folder / "stubs.c").write_text(STUBS)
    subprocess.run(
        [
            shutil.which("cc"),
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
            ROOT / "libintercept",
            "-o",
            folder / "power.so",
            ROOT / "libintercept/time/power.c",
            folder / "stubs.c",
        ],
        check=True,
    )
    library = ctypes.CDLL(folder / "power.so")
    library.ph_power_run_locked.restype = ctypes.c_uint64
    library.ph_power_run_locked.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_int)
    library.ph_power_waited_locked.argtypes = (ctypes.c_uint64,)
    return library


def start(power, model=MODEL):
    numbers = [
        model.low,
        model.full,
        model.window_ns,
        *model.weights,
        *model.gains,
        *model.variation(),
    ]
    power.set((ctypes.c_int64 * len(numbers))(*numbers))


def step(power, now, duration, bound_by, idle, device=0, kernels=100):
    """A hundred kernels, then idle time, then the host waits; returns the new time and the kernels'
    time."""
    busy = sum(power.ph_power_run_locked(device, duration, bound_by) for _ in range(kernels))
    power.ph_power_waited_locked(now + busy + idle)
    return now + busy + idle, busy


@pytest.mark.parametrize("bound_by", [COMPUTE, ATTENTION])
def test_a_gpu_that_always_computes_takes_the_recorded_times(power, bound_by):
    start(power)
    now = 0
    for _ in range(20):
        now, busy = step(power, now, 1_000_000, bound_by, 0)
    assert busy == 100 * 1_000_000


@pytest.mark.parametrize("bound_by", range(3))
def test_a_gpu_that_mostly_idles_is_faster_by_its_gain(power, bound_by):
    start(power)
    now = 0
    for _ in range(20):
        now, busy = step(power, now, 1_000_000, bound_by, 300_000_000)
    assert busy == 100 * (1_000_000 - 1000 * MODEL.gains[bound_by])


@settings(max_examples=60, deadline=None)
@given(
    idle=st.lists(st.integers(0, 300_000_000), min_size=2, max_size=2),
    bound_by=st.sampled_from([MEMORY, COMPUTE, ATTENTION]),
)
def test_more_idle_time_never_makes_kernels_longer(power, idle, bound_by):
    times = []
    for each in sorted(idle):
        start(power)
        now = 0
        for _ in range(30):
            now, busy = step(power, now, 1_000_000, bound_by, each)
        times.append(busy)
    assert times[0] >= times[1]
    assert bound_by != MEMORY or times == [100_000_000] * 2


def test_what_is_queued_counts_when_it_runs(power):
    """The host that runs ahead of its GPU has not made it busier than it can be."""
    start(power)
    for _ in range(10):
        power.ph_power_run_locked(0, 100_000_000, COMPUTE)
    for now in range(100_000_000, 800_000_001, 100_000_000):
        power.ph_power_waited_locked(now)
    assert power.ph_power_run_locked(0, 1_000_000, COMPUTE) == 1_000_000
    power.ph_power_waited_locked(2_000_000_000)
    assert power.ph_power_run_locked(0, 1_000_000, COMPUTE) == 800_000


def test_gpus_at_their_limits_differ_and_free_ones_do_not(power):
    start(power)
    free = {power.ph_power_run_locked(device, 1_000_000, COMPUTE) for device in range(VARIATIONS)}
    assert free == {800_000}
    for device in range(VARIATIONS):
        power.ph_power_run_locked(device, 1_000_000_000, COMPUTE)
    power.ph_power_waited_locked(500_000_000)
    held = [power.ph_power_run_locked(device, 1_000_000, COMPUTE) for device in range(VARIATIONS)]
    assert held == [1_000_000 + 1000 * lot for lot in MODEL.variation()]
    assert len(set(held)) == VARIATIONS and held[0] == 1_000_000


def test_a_model_that_says_nothing_changes_nothing(power):
    start(power, Power.unlimited())
    assert power.ph_power_run_locked(3, 12_345, COMPUTE) == 12_345
