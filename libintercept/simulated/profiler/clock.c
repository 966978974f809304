/* simulated/profiler/clock.c - simulated time for PyTorch's profiler.
 *
 * Why it exists: the profiler stamps operators with the processor's time stamp counter, which
 * counts real time. At its end it makes one function that converts ticks to nanoseconds since the
 * epoch, c10::ApproximateClockToUnixTimeConverter::makeConverter(), and gives it to Kineto too, for
 * the records of CUPTI. Here that function goes through moments that are known on both clocks: the
 * begins and ends of intercepted calls. Between two of them, time passes in proportion to the
 * counter. So operators and GPU work are in one timeline, the simulated one. The profiler's window
 * comes from the real-time clock, which is therefore simulated for the thread that profiles.
 *
 * The converter is a std::function<int64_t(uint64_t)>. Its layout is libstdc++'s
 * (bits/std_function.h: two words of data, a manager, an invoker), and it is returned through a
 * pointer, as the Itanium C++ ABI has it on x86-64. A test runs it under PyTorch. */
#include "simulated/profiler/clock.h"
#include "base/log.h"
#include "simulated/profiler/redirect.h"
#include "time/host_clock.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <x86intrin.h>

#define LIBRARY "libtorch_cpu.so"
/* no counter gets this far within ten years */
#define SIMULATED (1ull << 63)

struct converter {
    _Atomic unsigned holders;
    uint64_t epoch;
    size_t count; /* at least 1 */
    struct ph_clock_point *point;
};

struct function { /* std::function */
    struct converter *held;
    void *unused;
    bool (*manage)(struct function *to, const struct function *from, int operation);
    int64_t (*invoke)(const struct function *function, const uint64_t *tick);
};

static int (*real_gettime)(clockid_t clock, struct timespec *time);
static int64_t (*real_now)(void);
static void *(*real_converter)(void *result, void *self);
static ph_profile_end *at_end;
static _Atomic pthread_t profiling; /* the thread that runs a profile; 0: none */

uint64_t ph_profiler_tick(void) { return __rdtsc(); }
uint64_t ph_profiler_now(void) { return ph_clock_look(); }
uint64_t ph_profiler_epoch(uint64_t ns)
{
    return (uint64_t)phantora_touch_clock(CLOCK_REALTIME) + ns;
}
uint64_t ph_profiler_stamp(uint64_t ns) { return SIMULATED | ns; }
void ph_profiler_clock_on(bool on) { atomic_store(&profiling, on ? pthread_self() : 0); }
void ph_profiler_on_end(ph_profile_end *end) { at_end = end; }

/* ---- the real-time clock ---- */
static bool shows(void)
{
    return atomic_load_explicit(&profiling, memory_order_relaxed) == pthread_self();
}

static int shown_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_REALTIME || !shows()) return real_gettime(clock, time);
    uint64_t now = ph_profiler_epoch(ph_profiler_now());
    *time = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}

/* std::chrono::system_clock::now() */
static int64_t shown_now(void)
{
    return shows() ? (int64_t)ph_profiler_epoch(ph_profiler_now()) : real_now();
}

/* ---- the converter ---- */
static uint64_t simulated(const struct converter *converter, uint64_t tick)
{
    const struct ph_clock_point *point = converter->point;
    size_t low = 0, high = converter->count; /* point[low].tick <= tick < point[high].tick */
    if (tick < point[0].tick) return point[0].ns;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (point[middle].tick <= tick)
            low = middle;
        else
            high = middle;
    }
    if (high == converter->count) return point[low].ns;
    double share = (double)(tick - point[low].tick) / (double)(point[high].tick - point[low].tick);
    return point[low].ns + (uint64_t)(share * (double)(point[high].ns - point[low].ns));
}

static int64_t invoke(const struct function *function, const uint64_t *tick)
{
    const struct converter *converter = function->held;
    uint64_t ns = *tick & SIMULATED ? *tick & ~SIMULATED : simulated(converter, *tick);
    return (int64_t)(converter->epoch + ns);
}

static bool manage(struct function *to, const struct function *from, int operation)
{
    enum { TYPE, POINTER, CLONE, DESTROY };
    switch (operation) {
    case TYPE: to->held = NULL; break; /* no run-time type information */
    case POINTER: to->held = (struct converter *)(uintptr_t)from; break;
    case CLONE:
        to->held = from->held;
        atomic_fetch_add(&to->held->holders, 1);
        break;
    default:
        if (atomic_fetch_sub(&to->held->holders, 1) == 1) free(to->held->point), free(to->held);
    }
    return false;
}

/* so that neither clock goes back, whatever threads did at once */
static int by_tick(const void *left, const void *right)
{
    const struct ph_clock_point *a = left, *b = right;
    return a->tick != b->tick ? (a->tick < b->tick ? -1 : 1) : (a->ns > b->ns) - (a->ns < b->ns);
}

static void *make_converter(void *result, void *self)
{
    size_t count = 0;
    struct ph_clock_point *point = at_end ? at_end(&count) : NULL;
    if (!point) {
        ph_warn_for_run(
            "a torch.profiler without ProfilerActivity.CUDA shows the CPU in real time, "
            "not simulated");
        return real_converter(result, self);
    }
    qsort(point, count, sizeof *point, by_tick);
    for (size_t i = 1; i < count; i++)
        if (point[i].ns < point[i - 1].ns) point[i].ns = point[i - 1].ns;
    struct converter *converter = malloc(sizeof *converter);
    if (!converter) ph_die("out of host memory");
    *converter = (struct converter){1, ph_profiler_epoch(0), count, point};
    *(struct function *)result = (struct function){converter, NULL, manage, invoke};
    return result;
}

static bool installed;

static void install(void)
{
    installed =
        ph_redirect(LIBRARY, "clock_gettime", (void *)(uintptr_t)shown_gettime,
                    (void **)&real_gettime) &&
        ph_redirect(LIBRARY, "_ZNSt6chrono3_V212system_clock3nowEv", (void *)(uintptr_t)shown_now,
                    (void **)&real_now) &&
        ph_redirect(LIBRARY, "_ZN3c1035ApproximateClockToUnixTimeConverter13makeConverterEv",
                    (void *)(uintptr_t)make_converter, (void **)&real_converter);
}

bool ph_profiler_clocks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    return installed;
}
