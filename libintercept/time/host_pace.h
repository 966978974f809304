/* time/host_pace.h - how fast this process's host is now (time/host_pace.c). */
#ifndef PH_HOST_PACE_H
#define PH_HOST_PACE_H
#include <stdint.h>

struct ph_host_pace {
    double process; /* of this process, against the middle one */
    double passed;  /* ns of host time at the middle pace */
    uint64_t seed;
};

/* Ranks differ: this one is RANK of WORLD_SIZE. */
void ph_host_pace_start(struct ph_host_pace *pace);
/* What `host_ns` more of host time are multiplied by. */
double ph_host_pace(struct ph_host_pace *pace, double host_ns);
#endif
