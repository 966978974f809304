/* time/power.c - how a GPU's power limit decides its clock, and so the time of its kernels.
 *
 * Why it exists: a GPU that trains draws as much power as it may. Its clock is then what the work
 * of the last tenth of a second leaves, and the time of matrix products and attention follows the
 * clock (docs/kernel-times.md).
 *
 * This file keeps two means for each GPU: the power that its kernels would draw at the highest
 * clock and the power of what its links send. Links that are in use draw more beside that. Both are
 * followed kernel by kernel, in the order in which the work was issued, because that is the order
 * in which it runs. A kernel counts for longer than it takes by the share of time in which the GPU
 * had no work. That share is known exactly where the host has waited for the GPU, and is taken over
 * from the time before such a wait. A pause, such as that for the next batch, lowers both means
 * where it is, and says nothing of the work that follows. Waits for communication are not part of
 * it: they are foretold one by one (time/gaps.c), because a GPU that works and waits by turns is
 * held down while it works.
 *
 * Rule: all arithmetic uses whole numbers of simulated time, so runs repeat. */
#include "time/power.h"
#include "base/fork.h"
#include <string.h>

enum { DEVICES = 8, WHOLE = 1000, MILLION = 1000000 };

static struct {
    int64_t demand_uw; /* of kernels at the highest clock, beyond idle */
    int64_t links_uw;
    int64_t awake_ns; /* how long its links count as in use */
    /* GPU time issued since `since`, and foretold waits; queued work carries over */
    uint64_t asked_ns;
    uint64_t since;
    int64_t idle_ppm; /* share of time without work, over the window before `since` */
    bool used;
} gpu[DEVICES];

static void forget(void) { memset(gpu, 0, sizeof gpu); }

/* The clock at which the work of the window draws what the limit leaves it, in kHz. */
static int64_t clock_khz(int device)
{
    const struct ph_power *power = &ph_spec()->power;
    int64_t links = gpu[device].links_uw + (gpu[device].awake_ns > 0 ? power->awake_uw : 0),
            available = power->available_uw - links, demand = gpu[device].demand_uw,
            last = PH_POWER_CLOCKS - 1;
    /* links alone never take so much; the bound keeps the quotient in range */
    if (available < power->available_uw / 4) available = power->available_uw / 4;
    if (demand <= available) return power->highest_khz;
    int64_t place = (demand - available) * PH_POWER_STEPS * WHOLE / available,
            index = place / WHOLE, rest = place % WHOLE;
    const int64_t *clocks = power->clock_khz;
    int64_t clock = index >= last
                        ? clocks[last]
                        : clocks[index] + (clocks[index + 1] - clocks[index]) * rest / WHOLE;
    clock -=
        clock * power->variation_permille[ph_device_physical(device) % PH_GPU_VARIATIONS] / WHOLE;
    return clock < power->highest_khz ? clock : power->highest_khz;
}

/* A recorded time at another clock. */
static uint64_t at_clock(uint64_t duration, enum ph_bound_by bound_by, int64_t clock)
{
    const struct ph_power *power = &ph_spec()->power;
    uint64_t from = (uint64_t)power->recorded_khz[bound_by], to = (uint64_t)clock,
             follows = (uint64_t)power->follows_permille[bound_by];
    uint64_t all = duration / to * from + duration % to * from / to;
    uint64_t rest =
        duration / WHOLE * (WHOLE - follows) + duration % WHOLE * (WHOLE - follows) / WHOLE;
    return rest + all / WHOLE * follows + all % WHOLE * follows / WHOLE;
}

/* A part of the window, `passed`, has drawn `drawn_uw`: the mean moves towards it by that share.
 * The mean of the links only falls here; ph_power_sent_locked adds what they draw. */
static void follow(int device, int64_t drawn_uw, int64_t passed)
{
    int64_t window = ph_spec()->power.window_ns;
    gpu[device].demand_uw += (drawn_uw - gpu[device].demand_uw) / 1000 * passed / (window / 1000);
    gpu[device].links_uw -= gpu[device].links_uw / 1000 * passed / (window / 1000);
    if (gpu[device].awake_ns > 0) gpu[device].awake_ns -= passed;
}

/* What a kernel of so long would draw at the highest clock, beyond idle. Energy per FLOP goes as
 * the root of the clock and the time as its inverse, so that both together are the law of the
 * others. Attention draws `attention_base_uw` beside the energy of its FLOP. */
static int64_t drawn_uw(const struct ph_time *time, uint64_t duration_ns, int64_t clock)
{
    const struct ph_power *power = &ph_spec()->power;
    int64_t per_flop = 0, base = 0, most = 3 * power->available_uw;
    /* products without tensor cores are bound by the issue of instructions */
    if (time->bound_by == PH_BOUND_BY_COMPUTE || time->bound_by == PH_BOUND_BY_ISSUE)
        per_flop = power->flop_fj[time->precision];
    if (time->bound_by == PH_BOUND_BY_ATTENTION)
        per_flop = power->attention_flop_fj, base = power->attention_base_uw;
    if (!per_flop || !time->flop) return power->drawn_uw[time->bound_by];
    uint64_t rate = (time->halved ? time->flop / 2 : time->flop) / duration_ns;
    if (rate >= (uint64_t)(most / per_flop)) return most;
    int64_t drawn = base + (int64_t)rate * per_flop / clock * power->highest_khz;
    return drawn < most ? drawn : most;
}

static void count(int device, uint64_t duration_ns, int64_t drawn)
{
    const struct ph_power *power = &ph_spec()->power;
    int64_t busy = MILLION - gpu[device].idle_ppm, window = power->window_ns;
    int64_t passed =
        duration_ns < (uint64_t)window ? (int64_t)duration_ns * MILLION / busy : window;
    if (passed > window) passed = window;
    follow(device, drawn / WHOLE * busy / WHOLE, passed);
    gpu[device].asked_ns += duration_ns;
    if (!gpu[device].used) ph_forget_in_child(forget);
    gpu[device].used = true;
}

struct ph_clocked ph_power_run_locked(int device, const struct ph_time *time)
{
    const struct ph_power *power = &ph_spec()->power;
    enum ph_bound_by bound_by = time->bound_by;
    uint64_t duration_ns = time->duration_ns;
    if (!power->available_uw) return (struct ph_clocked){duration_ns, 0, false};
    int64_t clock = clock_khz(device), useful = power->fastest_khz[bound_by];
    if (useful) {
        if (useful > clock) useful = clock;
        duration_ns = at_clock(duration_ns, bound_by, useful);
        if (!duration_ns) duration_ns = 1;
    }
    count(device, duration_ns, drawn_uw(time, duration_ns, clock));
    return (struct ph_clocked){duration_ns, (uint64_t)clock, clock < power->highest_khz};
}

/* The device has no work for so long. */
static void rest(int device, uint64_t ns)
{
    enum { SLICES = 16 };
    int64_t window = ph_spec()->power.window_ns, slice = window / SLICES,
            left = ns < (uint64_t)window * SLICES ? (int64_t)ns : window * SLICES;
    for (; left > 0; left -= slice) follow(device, 0, left < slice ? left : slice);
}

void ph_power_idle_locked(int device, uint64_t ns)
{
    if (!ph_spec()->power.available_uw || !ns) return;
    rest(device, ns);
    gpu[device].asked_ns += ns;
}

void ph_power_longer_locked(int device, int64_t ns)
{
    uint64_t asked = gpu[device].asked_ns;
    gpu[device].asked_ns = ns < 0 && asked < (uint64_t)-ns ? 0 : asked + (uint64_t)ns;
}

void ph_power_sent_locked(int device, uint64_t bytes)
{
    const struct ph_power *power = &ph_spec()->power;
    if (!power->available_uw) return;
    uint64_t most = (uint64_t)power->available_uw,
             more = bytes / (uint64_t)power->window_ns * (uint64_t)power->link_fj +
                    bytes % (uint64_t)power->window_ns * (uint64_t)power->link_fj /
                        (uint64_t)power->window_ns;
    gpu[device].links_uw += (int64_t)(more < most ? more : most);
    if (gpu[device].links_uw > power->available_uw) gpu[device].links_uw = power->available_uw;
    if (bytes) gpu[device].awake_ns = power->window_ns;
}

void ph_power_waited_locked(uint64_t now)
{
    enum { SHORTEST_NS = 1000000, PAUSE_PPM = 900000 };
    const struct ph_power *power = &ph_spec()->power;
    if (!power->available_uw) return;
    for (int i = 0; i < DEVICES; i++) {
        if (!gpu[i].used || now < gpu[i].since + SHORTEST_NS) continue;
        uint64_t passed = now - gpu[i].since,
                 spent = gpu[i].asked_ns < passed ? gpu[i].asked_ns : passed;
        /* never all of it: a kernel that runs has a share */
        int64_t idle = (int64_t)((passed - spent) / WHOLE * (MILLION - WHOLE) / (passed / WHOLE));
        if (idle > PAUSE_PPM)
            rest(i, passed - spent);
        else {
            /* A wait that covers a whole window moves the estimate half of the way to what it saw,
             * a shorter one less in proportion. Not all of the way, because the estimate would
             * swing: too high a clock in one step makes work end early, so that there is more idle
             * time, and the clock of the next step is too low. */
            int64_t window = power->window_ns,
                    part = passed < (uint64_t)window ? (int64_t)passed : window;
            gpu[i].idle_ppm += (idle - gpu[i].idle_ppm) * part / window / 2;
        }
        gpu[i].asked_ns -= spent;
        gpu[i].since = now;
    }
}
