/* base/cpu_time.h - the CPU time of the calling thread.
 *
 * Why it exists: host time is what a thread computes, not how long it waits for a core. A read is a
 * system call, a quarter of a microsecond. */
#ifndef PH_CPU_TIME_H
#define PH_CPU_TIME_H
#include <stdint.h>
#include <time.h>

static inline uint64_t ph_thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
#endif
