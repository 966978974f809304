/* fast_clock.c - makes the process's monotonic clock run a thousand times faster after hurry().
 *
 * Why it exists: a test of what happens after minutes of waiting must not take minutes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { FACTOR = 1000 };
static int (*real)(clockid_t, struct timespec *);
static _Atomic int64_t since;

static int64_t nanoseconds(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    int error = real(clock, time);
    int64_t start = atomic_load(&since);
    if (error || clock != CLOCK_MONOTONIC || !start) return error;
    int64_t now = start + (nanoseconds(time) - start) * FACTOR;
    time->tv_sec = now / 1000000000;
    time->tv_nsec = now % 1000000000;
    return 0;
}

void hurry(void);
void hurry(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(&since, nanoseconds(&now));
}
