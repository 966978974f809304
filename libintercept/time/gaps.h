/* time/gaps.h - how long compute will wait for communication (time/gaps.c). ph_lock is held. */
#ifndef PH_GAPS_H
#define PH_GAPS_H
#include "base/msgpack.h"
#include <stdint.h>

/* Compute on a device is about to wait for communication, for that which ends at vertex `launch`
 * (0: not known): how long this wait took in the last step, in ns; 0 if that is not known. Called
 * once for each wait that the hub is told of. */
uint64_t ph_gaps_expected_locked(int device, uint64_t launch);
/* Communication is launched that ends at `vertex`: how long compute waited for it in the last step,
 * in ns; 0 if it did not, or that is not known. */
uint64_t ph_gaps_launch_locked(uint64_t vertex);
/* The hub's answer says how long waits took: the number of the first of them, an array of ns.
 * `longer` is called once for each, with the ns that it took more than was expected (less: below
 * 0). */
void ph_gaps_told_locked(struct ph_reply *reply, void (*longer)(int device, int64_t ns));
/* a training step ends */
void ph_gaps_step_locked(void);
/* the host has waited for its GPU: the end of a step where nothing else shows steps */
void ph_gaps_synchronized_locked(void);
void ph_gaps_forget(void); /* in a forked child */
#endif
