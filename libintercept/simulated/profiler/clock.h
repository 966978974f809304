/* simulated/profiler/clock.h - the clocks that PyTorch's profiler reads. */
#ifndef PH_PROFILER_CLOCK_H
#define PH_PROFILER_CLOCK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A moment on both clocks. */
struct ph_clock_point {
    uint64_t tick; /* of the processor's counter, which stamps operators */
    uint64_t ns;   /* simulated */
};

/* Points the clocks of PyTorch's CPU library at simulated time. False if that cannot be done. */
bool ph_profiler_clocks(void);
/* From now on that library's real-time clock shows simulated time to this thread, which runs a
 * profile; false: to none. */
void ph_profiler_clock_on(bool on);
uint64_t ph_profiler_tick(void);
/* The simulated clock, ns since the process began to use CUDA. */
uint64_t ph_profiler_now(void);
/* The same moment as nanoseconds since the epoch, as the job's time.time_ns() has it. */
uint64_t ph_profiler_epoch(uint64_t ns);
/* What a record holds where Kineto will convert it: a simulated time that looks like ticks. */
uint64_t ph_profiler_stamp(uint64_t ns);

/* What gives the points of a profile that ends now; `count` receives how many. The points are
 * heap memory, which passes to the caller. NULL: no profile is to end. */
typedef struct ph_clock_point *ph_profile_end(size_t *count);
void ph_profiler_on_end(ph_profile_end *end);
#endif
