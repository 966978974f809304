/* simulated/profiler/profile.h - a profile of this process while it runs. */
#ifndef PH_PROFILE_H
#define PH_PROFILE_H
#include "simulated/profiler/clock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Call and work carry a correlation number: what a call launched has the call's. Times in ns since
 * the process began to use CUDA. */
struct ph_profiled_call {
    uint32_t correlation, thread, id; /* `id` is CUPTI's callback id; 0: it has none */
    bool driver, timed;               /* of the driver's API; its times are known */
    uint64_t begin_tick, end_tick, begin_ns, end_ns;
    uint64_t external[2]; /* what was pushed around the call, per kind of correlation; 0: nothing */
};

struct ph_profiled_work {
    int64_t kind, correlation;
    const char *name; /* valid until the next profile has been collected */
    int64_t device, stream, begin_ns, end_ns;
    int64_t facts[9]; /* as geometry() of phantora_ns/trace/describe.py says them */
};

struct ph_profile {
    struct ph_profiled_call *call;
    size_t calls;
    struct ph_profiled_work *work;
    size_t works;
};

/* Begins to log, or goes on. The caller's thread runs the profile. False: it cannot be done, and
 * the reason has been written. */
bool ph_profile_record(void);
void ph_profile_pause(void); /* what is logged so far stays */
/* Ends the profile: asks the hub for all times. `profile` receives what was logged, which belongs
 * to this file; the points are the caller's. NULL: there is no profile. */
struct ph_clock_point *ph_profile_collect(struct ph_profile *profile, size_t *points);

/* The numbers that the caller's thread pushes around calls; `which` is 0 or 1. */
void ph_profile_push(int which, uint64_t external);
uint64_t ph_profile_pop(int which);

/* CUPTI's name of a callback id; NULL: not one of a call that is logged. */
const char *ph_profile_call_name(bool driver, uint32_t id);
#endif
