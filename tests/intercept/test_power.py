"""What a power limit does to clocks and kernel times, by libintercept/time/power.c alone: the laws
of the model, not its numbers.

Held against the law itself (phantora_ns/model/power.py): work that is kept up settles at the clock
at which it draws what the limit leaves. A GPU below its limit is left alone, no kernel is faster
than at the highest clock, what memory decides never changes, and in between nothing jumps.
"""

import ctypes
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora_ns.model.power import BOUND_BY, CLOCKS, VARIATIONS, Power
from phantora_ns.protocol import Precision
from tests.intercept.parts import load_part

STUBS = """
#include "base/fork.h"
#include "time/power.h"
static void (*forget)(void);
void ph_forget_in_child(void (*function)(void)) { forget = function; }
static struct ph_device_spec spec;
const struct ph_device_spec *ph_spec(void) { return &spec; }
int ph_device_physical(int device) { return device; }
void set(const int64_t *numbers)
{
    struct ph_power *power = &spec.power;
    power->available_uw = numbers[0], power->link_fj = numbers[1], power->window_ns = numbers[2];
    power->highest_khz = numbers[3], power->awake_uw = numbers[4];
    numbers += 5;
    for (int i = 0; i < PH_BOUND_BY_COUNT; i++) {
        power->drawn_uw[i] = *numbers++;
        power->recorded_khz[i] = *numbers++;
        power->fastest_khz[i] = *numbers++;
        power->follows_permille[i] = *numbers++;
    }
    for (int i = 0; i < PH_PRECISIONS; i++) power->flop_fj[i] = *numbers++;
    power->attention_flop_fj = *numbers++;
    power->attention_base_uw = *numbers++;
    for (int i = 0; i < PH_POWER_CLOCKS; i++) power->clock_khz[i] = *numbers++;
    for (int i = 0; i < PH_GPU_VARIATIONS; i++) power->variation_permille[i] = *numbers++;
    if (forget) forget();
}
struct ph_clocked run_kernel(int device, uint64_t duration_ns, int bound_by)
{
    return ph_power_run_locked(
        device, &(struct ph_time){.duration_ns = duration_ns, .bound_by = (enum ph_bound_by)bound_by});
}
struct ph_clocked multiply(int device, uint64_t duration_ns, int bound_by, int precision, uint64_t flop,
                           bool halved)
{
    return ph_power_run_locked(device, &(struct ph_time){.duration_ns = duration_ns,
                                                         .bound_by = (enum ph_bound_by)bound_by,
                                                         .precision = (enum ph_precision)precision,
                                                         .flop = flop,
                                                         .halved = halved});
}
"""
MODEL = Power(
    limit=690.0,
    idle=130.0,
    drawn=(400.0, 1000.0, 600.0, 400.0, 400.0, 560.0),
    per_flop=tuple(
        {"bf16": 1.0, "tf32": 2.0, "fp32": 2.0}.get(name, 0.0) for name in Precision.LABELS
    ),
    attention_per_flop=0.4,
    attention_base=420.0,
    exponent=1.5,
    link=0.5,
    awake=25.0,
    window_ns=100_000_000,
    highest=2000.0,
    recorded=(1600.0, 1600.0, 1600.0, 1800.0, 1800.0, 1600.0),
    fastest=(0.0, 1800.0, 2000.0, 2000.0, 2000.0, 0.0),
    follows=(0.0, 1.0, 1.0, 0.7, 0.3, 0.0),
    spread=0.01,
)
MEMORY, COMPUTE, ATTENTION, ISSUE, MIXED = range(5)
MS = 1_000_000


class Clocked(ctypes.Structure):
    _fields_ = [
        ("duration_ns", ctypes.c_uint64),
        ("clock_khz", ctypes.c_uint64),
        ("held", ctypes.c_bool),
    ]


@pytest.fixture(scope="module")
def power(tmp_path_factory):
    library = load_part(tmp_path_factory.mktemp("power"), ["time/power.c"], STUBS)
    library.run_kernel.restype = library.multiply.restype = Clocked
    library.run_kernel.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_int)
    library.multiply.argtypes = (
        *(ctypes.c_int, ctypes.c_uint64, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_uint64, ctypes.c_bool),
    )
    library.ph_power_waited_locked.argtypes = (ctypes.c_uint64,)
    library.ph_power_sent_locked.argtypes = (ctypes.c_int, ctypes.c_uint64)
    library.ph_power_idle_locked.argtypes = (ctypes.c_int, ctypes.c_uint64)
    return library


def start(power, model=MODEL):
    """Sets the model through the fields of device.conf; all GPUs are cool."""
    fields = dict(model.fields())

    def number(name):
        return fields.get(name, 0)

    scalars = "available_uw", "link_fj", "window_ns", "highest_khz", "awake_uw"
    numbers = [number(name) for name in scalars]
    for index in range(len(BOUND_BY)):
        numbers += [
            number(f"{name}.{index}")
            for name in ("drawn_uw", "recorded_khz", "fastest_khz", "follows_permille")
        ]
    numbers += [number(f"flop_fj.{index}") for index in range(len(Precision.LABELS))]
    numbers += [number("attention_flop_fj"), number("attention_base_uw")]
    numbers += [number(f"clock_khz.{index}") for index in range(CLOCKS)]
    numbers += [number(f"variation_permille.{index}") for index in range(VARIATIONS)]
    power.set((ctypes.c_int64 * len(numbers))(*numbers))


def run(power, duration, bound_by, device=0, times=1):
    """The last of so many equal kernels."""
    for _ in range(times):
        found = power.run_kernel(device, duration, bound_by)
    return found


def settled(power, mix, idle_ns=0, sent_bytes=0):
    """Rounds of (duration, bound_by) with a wait after each, over many windows; the last round's
    kernels."""
    now = 0
    while now < 10 * MODEL.window_ns:
        power.ph_power_sent_locked(0, sent_bytes)
        found = [power.run_kernel(0, *kernel) for kernel in mix]
        now += sum(kernel.duration_ns for kernel in found) + idle_ns
        power.ph_power_waited_locked(now)
    return found


def at_clock(duration, bound_by, mhz):
    """What a recorded time is at a clock, by the law."""
    useful = min(MODEL.fastest[bound_by] or math.inf, mhz)
    follows = MODEL.follows[bound_by]
    return duration * (1 - follows + follows * MODEL.recorded[bound_by] / useful)


def drawn_w(mix, found, idle_ns=0, sent_bytes=0):
    """The mean power beyond idle of a round, by the law."""
    joules = sum(
        MODEL.drawn[bound_by] * (kernel.clock_khz / 1e3 / MODEL.highest) ** MODEL.exponent
        * kernel.duration_ns
        for (_, bound_by), kernel in zip(mix, found, strict=True)
    )  # fmt: skip
    passed = sum(kernel.duration_ns for kernel in found) + idle_ns
    return (joules + sent_bytes * MODEL.link) / passed + (MODEL.awake if sent_bytes else 0)


kernels = st.tuples(
    st.integers(MS // 2, 4 * MS),
    st.sampled_from([MEMORY, COMPUTE, COMPUTE, ATTENTION, ISSUE, MIXED]),
)


@settings(max_examples=60, deadline=None)
@given(
    mix=st.lists(kernels, min_size=1, max_size=6),
    idle=st.integers(0, 20 * MS),
    sent_gb=st.floats(0, 0.3),
)
def test_work_that_is_kept_up_draws_what_the_limit_leaves(power, mix, idle, sent_gb):
    """Rounds much shorter than the window: either the clock is free and the law stays within the
    limit, or it is held and the law draws just the limit."""
    start(power)
    sent = round(sent_gb * 1e6 * sum(duration for duration, _ in mix) / MS)
    found = settled(power, mix, idle, sent)
    available, drawn = MODEL.limit - MODEL.idle, drawn_w(mix, found, idle, sent)
    if all(kernel.held for kernel in found):
        assert drawn == pytest.approx(available, rel=0.04)
    elif not any(kernel.held for kernel in found):
        assert drawn <= available * 1.04


@settings(max_examples=60, deadline=None)
@given(
    mix=st.lists(kernels, min_size=1, max_size=6),
    idle=st.integers(0, 300 * MS),
    device=st.integers(0, VARIATIONS - 1),
)
def test_no_kernel_is_faster_than_at_the_highest_clock(power, mix, idle, device):
    start(power)
    now = 0
    for _ in range(20):
        for duration, bound_by in mix:
            found = power.run_kernel(device, duration, bound_by)
            assert found.duration_ns >= at_clock(duration, bound_by, MODEL.highest) - 3
            assert 0 < found.clock_khz <= MODEL.highest * 1000
            assert found.duration_ns == pytest.approx(
                at_clock(duration, bound_by, found.clock_khz / 1000), abs=3
            )
            assert bound_by != MEMORY or found.duration_ns == duration
            now += found.duration_ns
        now += idle
        power.ph_power_waited_locked(now)


@pytest.mark.parametrize("bound_by", range(len(BOUND_BY)))
def test_a_gpu_below_its_limit_is_left_alone(power, bound_by):
    start(power)
    found = settled(power, [(10 * MS, bound_by)], idle_ns=30 * MS)
    assert not found[0].held and found[0].clock_khz == MODEL.highest * 1000
    assert found[0].duration_ns == pytest.approx(at_clock(10 * MS, bound_by, MODEL.highest), abs=3)


@settings(max_examples=60, deadline=None)
@given(
    idle=st.lists(st.integers(0, 300 * MS), min_size=2, max_size=2),
    bound_by=st.sampled_from([MEMORY, COMPUTE, ATTENTION, ISSUE, MIXED]),
)
def test_more_idle_time_never_makes_kernels_longer(power, idle, bound_by):
    times = []
    for each in sorted(idle):
        start(power)
        times.append(settled(power, [(100 * MS, bound_by)], each)[0].duration_ns)
    assert times[0] >= times[1]
    assert bound_by != MEMORY or times == [100 * MS] * 2


def test_a_window_decides_how_fast_the_clock_follows(power):
    start(power)
    clocks = [run(power, 5 * MS, COMPUTE).clock_khz for _ in range(200)]
    assert clocks == sorted(clocks, reverse=True) and clocks[0] == MODEL.highest * 1000
    assert clocks[5] == clocks[0] > clocks[40] > clocks[-1]
    assert clocks[-1] / 1000 == pytest.approx(MODEL.clock(1000 / 560), rel=0.01)


def in_turns(power, busy_ms, wait_ms, foretold):
    """Clocks of the kernels of 1 ms in the last of many turns of work and waiting."""
    start(power)
    now = 0
    for _ in range(2000 // (busy_ms + wait_ms) + 10):
        if foretold:
            power.ph_power_idle_locked(0, wait_ms * MS)
        found = [run(power, MS, COMPUTE) for _ in range(busy_ms)]
        now += sum(kernel.duration_ns for kernel in found) + wait_ms * MS
        power.ph_power_waited_locked(now)
    return [kernel.clock_khz for kernel in found]


def test_a_gpu_that_works_and_waits_by_turns_is_held_down_while_it_works(power):
    """Turns longer than the window: after the wait the clock is free, and at the end of the work it is
    what work without a pause leaves. The mean alone would leave the clock free."""
    start(power)
    kept_up = run(power, MS, COMPUTE, times=2000).clock_khz
    assert kept_up < 0.9 * MODEL.highest * 1000
    spread, placed = (in_turns(power, 400, 600, foretold) for foretold in (False, True))
    assert placed[0] == MODEL.highest * 1000 and placed[-1] == pytest.approx(kept_up, rel=0.02)
    assert min(spread) > max(placed[100:])


def test_turns_much_shorter_than_the_window_are_their_mean(power):
    spread, placed = (in_turns(power, 4, 1, foretold) for foretold in (False, True))
    assert placed[-1] == pytest.approx(spread[-1], rel=0.02)


def test_what_links_send_takes_power_from_kernels(power):
    clocks = []
    for sent in (0, 500_000_000):
        start(power)
        clocks.append(settled(power, [(5 * MS, COMPUTE)], 0, sent)[0].clock_khz)
    # 0.25 J every 5 ms and more: 40 to 50 W of 560
    assert 0.9 < clocks[1] / clocks[0] < 0.97


def test_how_work_is_cut_into_kernels_does_not_matter(power):
    clocks = []
    for parts in (1, 10, 1000):
        start(power)
        clocks.append(settled(power, [(10 * MS // parts, COMPUTE)] * parts)[0].clock_khz)
    assert max(clocks) / min(clocks) < 1.001


def test_what_is_queued_counts_when_it_runs(power):
    """The host that runs ahead of its GPU has not made it busier than it can be."""
    start(power)
    run(power, 100 * MS, COMPUTE, times=10)
    for now in range(100 * MS, 800 * MS + 1, 100 * MS):
        power.ph_power_waited_locked(now)
    assert run(power, MS, COMPUTE).held
    power.ph_power_waited_locked(20_000 * MS)
    assert not run(power, MS, COMPUTE, times=40).held


def test_a_pause_cools_the_work_after_it_and_no_longer(power):
    """A step that waits for its GPU, and then for its next batch: 300 ms of work, 12 ms of none. After one
    window of work the clock is that of work without pauses."""

    def last_clocks(pause):
        start(power)
        now = 0
        for _ in range(10):
            step = [run(power, MS, COMPUTE) for _ in range(300)]
            now += sum(kernel.duration_ns for kernel in step)
            power.ph_power_waited_locked(now)
            if pause:
                now += 12 * MS
                power.ph_power_waited_locked(now)
        return [kernel.clock_khz for kernel in step]

    without, paused = last_clocks(False), last_clocks(True)
    assert paused[0] > 1.02 * without[0]
    assert paused[-1] == pytest.approx(without[-1], rel=0.005)


def test_a_little_more_time_says_a_little_more(power):
    """A wait that is a little shorter than the window of the power limit moves the clock about as far as one that is a
    little longer: there is no jump between the two cases of the law."""

    def last_clock(passed):
        start(power)
        now = 0
        for busy in (100, 50, 100, 50):  # % of the time between two waits
            work = sum(run(power, MS, COMPUTE).duration_ns for _ in range(passed * busy // 100))
            now += max(passed * MS, work)
            power.ph_power_waited_locked(now)
        return run(power, MS, COMPUTE, times=20).clock_khz

    window = MODEL.window_ns // MS
    assert last_clock(window - 2) == pytest.approx(last_clock(window + 2), rel=0.01)


def test_gpus_at_their_limits_differ_and_free_ones_do_not(power):
    start(power)
    free = {power.run_kernel(device, MS, COMPUTE).duration_ns for device in range(8)}
    assert free == {int(MS * 1600 / 1800)}
    held = [run(power, 50 * MS, COMPUTE, device, times=40).clock_khz for device in range(8)]
    assert len(set(held)) == VARIATIONS
    assert [round(1000 * (1 - clock / held[0])) for clock in held] == MODEL.variation()


def test_a_model_that_says_nothing_changes_nothing(power):
    start(power, Power.unlimited())
    power.ph_power_sent_locked(3, 1 << 40)
    found = run(power, 12_345, COMPUTE, 3)
    assert (found.duration_ns, found.clock_khz, found.held) == (12_345, 0, False)


@pytest.mark.parametrize("duration", [1, 3, (1 << 40) - 1])
def test_no_duration_leaves_the_range(power, duration):
    start(power)
    for bound_by in (MEMORY, COMPUTE, ATTENTION) * 20:
        power.ph_power_sent_locked(0, 1 << 50)
        found = power.run_kernel(0, duration, bound_by)
        assert 0 < found.duration_ns < 4 * duration + 2


RATE = 100_000
"""FLOP per ns of a slow product."""
products = st.tuples(
    st.integers(MS // 2, 4 * MS),
    st.sampled_from(
        [
            (COMPUTE, Precision.BF16),
            (COMPUTE, Precision.TF32),
            (ISSUE, Precision.FP32),  # without tensor cores
            (ATTENTION, Precision.BF16),
        ]
    ),
    st.integers(
        RATE, 6 * RATE
    ),  # of tf32 more would be beyond the table of clocks, three times what is left
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(mix=st.lists(products, min_size=1, max_size=6), idle=st.integers(0, 5 * MS))
def test_products_take_an_energy_per_flop(power, mix, idle):
    """Kept up, they draw what the limit leaves, each FLOP as much as its precision takes at the clock."""
    start(power)
    now = 0
    while now < 10 * MODEL.window_ns:
        found = [
            power.multiply(0, duration, *kind, duration * rate, halved)
            for duration, kind, rate, halved in mix
        ]
        now += sum(kernel.duration_ns for kernel in found) + idle
        power.ph_power_waited_locked(now)
    joules = 0.0
    for (duration, (bound_by, precision), rate, halved), kernel in zip(mix, found, strict=True):
        each = MODEL.attention_per_flop if bound_by == ATTENTION else MODEL.per_flop[precision]
        flop = duration * rate / (2 if halved else 1)
        ratio = kernel.clock_khz / 1e3 / MODEL.highest
        joules += 1e-3 * each * flop * ratio ** (MODEL.exponent - 1)
        if bound_by == ATTENTION:
            joules += MODEL.attention_base * kernel.duration_ns * ratio**MODEL.exponent
    drawn = joules / (sum(kernel.duration_ns for kernel in found) + idle)
    if all(kernel.held for kernel in found):
        assert drawn == pytest.approx(MODEL.limit - MODEL.idle, rel=0.04)
    elif not any(kernel.held for kernel in found):
        assert drawn <= (MODEL.limit - MODEL.idle) * 1.04


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.UNCOUNTED, Precision.NONE])
def test_products_without_an_energy_draw_by_time(power, precision):
    clocks = []
    for flop in (0, 1):
        start(power)
        for _ in range(400):
            found = power.multiply(0, 5 * MS, COMPUTE, precision, flop << 40, False)
        clocks.append(found.clock_khz)
    assert clocks[0] == clocks[1] < MODEL.highest * 1000


@pytest.mark.parametrize("flop", [1, 1 << 30, (1 << 62) - 1])
@pytest.mark.parametrize("duration", [1, 1000, 1 << 40])
def test_no_number_of_flop_leaves_the_range(power, flop, duration):
    start(power)
    for _ in range(40):
        found = power.multiply(0, duration, COMPUTE, Precision.BF16, flop, False)
        assert 0 < found.duration_ns < 4 * duration + 2
        assert MODEL.clock(3) * 999 <= found.clock_khz <= MODEL.highest * 1000


def test_links_in_use_draw_power_until_a_window_after_the_last_byte(power):
    """The energy of the one byte that is sent here is negligible. While the links count as in use, their power
    lowers the clock that the limit allows. A window later the clock is back."""
    start(power)
    before = run(power, MS, COMPUTE, times=10 * MODEL.window_ns // MS)
    power.ph_power_sent_locked(0, 1)
    use = run(power, MS, COMPUTE, times=MODEL.window_ns // MS // 2)
    after = run(power, MS, COMPUTE, times=2 * MODEL.window_ns // MS)
    assert before.held and use.clock_khz < before.clock_khz
    assert use.clock_khz / before.clock_khz == pytest.approx(
        (1 - MODEL.awake / (MODEL.limit - MODEL.idle)) ** (1 / MODEL.exponent), rel=0.003
    )
    assert after.clock_khz == pytest.approx(before.clock_khz, rel=1e-3)
