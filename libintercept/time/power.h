/* time/power.h - how a GPU's power limit changes its clock (time/power.c). ph_lock is held. */
#ifndef PH_POWER_H
#define PH_POWER_H
#include "base/device.h"
#include <stdint.h>

/* the duration of a kernel at the GPU's current power demand; adds the kernel to the demand */
uint64_t ph_power_run_locked(int device, uint64_t duration_ns, enum ph_bound_by bound_by);
/* the host has waited for its GPU until `now`: updates the demand */
void ph_power_waited_locked(uint64_t now);
#endif
