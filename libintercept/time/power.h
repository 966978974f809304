/* time/power.h - how a GPU's power limit decides its clock (time/power.c). ph_lock is held. */
#ifndef PH_POWER_H
#define PH_POWER_H
#include "base/device.h"
#include "time/timeline.h"
#include <stdint.h>

struct ph_clocked {
    uint64_t duration_ns;
    uint64_t clock_khz; /* 0: nothing is known of this GPU's power */
    bool held;          /* the power limit holds the clock below the highest */
};
/* a kernel at the GPU's clock of now, and adds the kernel to what decides the clock. `time`: at the
 * clock of the recordings */
struct ph_clocked ph_power_run_locked(int device, const struct ph_time *time);
/* the GPU is about to wait so long for communication */
void ph_power_idle_locked(int device, uint64_t ns);
/* such a wait has taken so much longer than was said, or shorter */
void ph_power_longer_locked(int device, int64_t ns);
/* the GPU sends so many bytes to other GPUs */
void ph_power_sent_locked(int device, uint64_t bytes);
/* the host has waited for its GPU until `now`: the time without work is known */
void ph_power_waited_locked(uint64_t now);
#endif
