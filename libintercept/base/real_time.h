/* base/real_time.h - real time, where simulated time does not serve.
 *
 * Why it exists: what waits for other programs or for threads that only poll must measure in real
 * time, and so must what measures a real GPU. No simulated time may depend on it. */
#ifndef PH_REAL_TIME_H
#define PH_REAL_TIME_H
#include <stdint.h>
#include <time.h>

static inline uint64_t ph_real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
#endif
