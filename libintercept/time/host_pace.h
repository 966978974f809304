/* time/host_pace.h - how fast this process's host is now (time/host_pace.c). */
#ifndef PH_HOST_PACE_H
#define PH_HOST_PACE_H
#include <stdbool.h>
#include <stdint.h>

struct ph_host_pace {
    double process; /* of this process, against the middle one */
    double passed;  /* ns that its calls have cost at the middle pace */
    uint64_t seed;
    bool placed; /* it is known which of the job's processes this is */
};

/* Ranks differ: this one is RANK of WORLD_SIZE. Without these it has the middle pace until it joins
 * a communicator. */
void ph_host_pace_start(struct ph_host_pace *pace);
/* This process is rank `rank` of a communicator of `ranks`. Only the first one decides, and only if
 * the environment does not say. */
void ph_host_pace_join(struct ph_host_pace *pace, uint64_t rank, uint64_t ranks);
/* What the host time up to and with the next call is multiplied by. `call_ns`: what the call costs.
 */
double ph_host_pace(struct ph_host_pace *pace, uint64_t call_ns);
#endif
