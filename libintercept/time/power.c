/* time/power.c - how a GPU's power limit changes its clock, and so the time of its kernels.
 *
 * Why it exists: a GPU that computes all the time runs at its power limit. Its matrix products
 * then run at three quarters of the clock of a GPU that waits a third of its time
 * (docs/kernel-times.md). Recorded times are those of a GPU at its limit.
 *
 * This file keeps the recent power demand of each GPU, as a share: kernel time weighted by the
 * power that the class of the kernel draws, over elapsed time. The elapsed time is known exactly
 * where the host has waited for the GPU. Below [power].full kernels are shorter, by at most the
 * gain of their class, which they reach at [power].low. GPUs of one model differ: at its limit,
 * each one is slower or faster than the median by its own GPU variation. All arithmetic uses whole
 * numbers of simulated time, so runs repeat. */
#include "time/power.h"
#include "base/fork.h"
#include <string.h>

enum { DEVICES = 8, WHOLE = 1000 };

static struct {
    /* demanded device time at full power since `since`; queued work carries over */
    uint64_t asked_ns;
    uint64_t since;
    int64_t demand; /* permille, averaged over the window */
    bool used;
} gpu[DEVICES];

static void forget(void) { memset(gpu, 0, sizeof gpu); }

/* How far the limit holds the clock back: 0 where the clock is free, WHOLE at the limit. */
static int64_t held_back(int device)
{
    const struct ph_power *power = &ph_spec()->power;
    int64_t above = gpu[device].demand - (int64_t)power->low_permille,
            range = (int64_t)power->full_permille - (int64_t)power->low_permille;
    if (range <= 0 || above >= range) return WHOLE;
    return above <= 0 ? 0 : above * WHOLE / range;
}

uint64_t ph_power_run_locked(int device, uint64_t duration_ns, enum ph_bound_by bound_by)
{
    const struct ph_power *power = &ph_spec()->power;
    if (!power->full_permille) return duration_ns; /* the GPU model has no power limit */
    int64_t held = held_back(device), duration = (int64_t)duration_ns,
            gain = (int64_t)power->gain_permille[bound_by];
    duration -= duration * gain / WHOLE * (WHOLE - held) / WHOLE;
    if (bound_by != PH_BOUND_BY_MEMORY)
        duration += duration *
                    power->variation_permille[ph_device_physical(device) % PH_GPU_VARIATIONS] /
                    WHOLE * held / WHOLE;
    gpu[device].asked_ns += (uint64_t)duration * power->weight_permille[bound_by] / WHOLE;
    if (!gpu[device].used) ph_forget_in_child(forget);
    gpu[device].used = true;
    return duration > 0 ? (uint64_t)duration : 1;
}

void ph_power_waited_locked(uint64_t now)
{
    enum { SHORTEST_NS = 1000000 };
    const struct ph_power *power = &ph_spec()->power;
    if (!power->full_permille) return;
    for (int i = 0; i < DEVICES; i++) {
        if (!gpu[i].used || now < gpu[i].since + SHORTEST_NS) continue;
        uint64_t passed = now - gpu[i].since,
                 spent = gpu[i].asked_ns < passed ? gpu[i].asked_ns : passed;
        int64_t now_permille = (int64_t)(spent * WHOLE / passed);
        if (passed >= power->window_ns)
            gpu[i].demand = now_permille;
        else
            gpu[i].demand +=
                (now_permille - gpu[i].demand) * (int64_t)passed / (int64_t)power->window_ns;
        gpu[i].asked_ns -= spent;
        gpu[i].since = now;
    }
}
