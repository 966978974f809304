/* time/host_pace.h - how fast this process's host is now (time/host_pace.c). */
#ifndef PH_HOST_PACE_H
#define PH_HOST_PACE_H
#include <stdint.h>

struct ph_host_pace {
    double process; /* of this process, against the middle one */
    double passed;  /* ns that its calls have cost at the middle pace */
    uint64_t seed;
};

/* Ranks differ: this one is RANK of WORLD_SIZE. */
void ph_host_pace_start(struct ph_host_pace *pace);
/* What the host time up to and with the next call is multiplied by. `call_ns`: what the call costs.
 */
double ph_host_pace(struct ph_host_pace *pace, uint64_t call_ns);
#endif
