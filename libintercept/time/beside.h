/* time/beside.h - whether compute will run beside a collective. ph_lock is held. */
#ifndef PH_BESIDE_H
#define PH_BESIDE_H
#include "time/expression.h"
#include <stdbool.h>
#include <stdint.h>

struct ph_beside; /* what is known of one communicator's launches */

/* Whether compute is expected to run beside the launch `vertex`, which begins no sooner than
 * `begin`. `what` tells launches of this communicator apart; compute is queued until `computed`. */
bool ph_beside_expected_locked(struct ph_beside **known, uint64_t what, int device, uint64_t vertex,
                               uint64_t begin, uint64_t computed);
/* compute of the device is queued until `computed` */
void ph_beside_computed_locked(int device, uint64_t computed);
/* compute of the device will wait for `event`; ph_beside_computed_locked was called before */
void ph_beside_waited_locked(int device, const struct ph_expr *event);
/* the host has waited for all work of the process */
void ph_beside_over_locked(void);
void ph_beside_free_locked(struct ph_beside *known);
void ph_beside_forget(void); /* in a forked child */
#endif
