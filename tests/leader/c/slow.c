/* slow.c - between a leader and the emulated GPU: real calls that use much processor time.
 *
 * Why it exists: the time of a real call must be recorded as that call's cost, and not as the job's
 * own time before the next call. Calls without a class count as the job's own time. With calls as
 * slow as these, the two cannot be confused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define SLOW_NS 400000

static void spend(void)
{
    struct timespec t;
    uint64_t from, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    from = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    do {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        now = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    } while (now - from < SLOW_NS);
}

static int (*below_record)(void *, void *, unsigned);

EXPORT int cudaMemsetAsync(void *to, int value, size_t bytes, void *stream)
{
    int (*next)(void *, int, size_t, void *) =
        (__typeof__(next))dlsym(RTLD_NEXT, "cudaMemsetAsync");
    /* the leader's own */
    int (*record)(void *, void *, unsigned) =
        (__typeof__(record))dlsym(RTLD_DEFAULT, "cudaEventRecordWithFlags");
    void *event = NULL;
    int (*make)(void **, unsigned) =
        (__typeof__(make))dlsym(RTLD_DEFAULT, "cudaEventCreateWithFlags");
    spend();
    /* a library that synchronises within itself */
    if (make(&event, 2) == 0) record(event, stream, 0);
    spend();
    return next(to, value, bytes, stream);
}

EXPORT int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    if (!below_record)
        below_record = (__typeof__(below_record))dlsym(RTLD_NEXT, "cudaEventRecordWithFlags");
    return below_record(event, stream, flags);
}

/* has no class, so it is not wrapped and counts as the job's own time */
EXPORT int cudaStreamGetPriority(void *stream, int *priority)
{
    (void)stream;
    spend();
    return *priority = 0;
}
