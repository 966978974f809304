/* time/power.h - the clock that a GPU's power limit leaves (time/power.c). ph_lock is held. */
#ifndef PH_POWER_H
#define PH_POWER_H
#include "base/device.h"
#include <stdint.h>

/* how long a kernel takes as the GPU stands */
uint64_t ph_power_run_locked(int device, uint64_t duration_ns, enum ph_bound_by bound_by);
/* the host has waited for its GPU until `now` */
void ph_power_waited_locked(uint64_t now);
#endif
