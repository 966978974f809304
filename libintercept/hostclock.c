/* hostclock.c - the rank's host time, and how a process joins the run.
 *
 * Why it exists: host time is a chain. Between two intercepted calls it advances by the calling thread's CPU time (times a
 * scale), plus a modelled cost for the call. It is the last anchor (a time that the hub has answered) plus an offset. */
#include "timeline.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t ph_lock = PTHREAD_MUTEX_INITIALIZER;
struct ph_host ph_host;
static _Atomic bool touched;
static bool measured = true;
static double scale = 1.0;
static _Thread_local struct { bool chain, paused; uint64_t cpu; } me;

bool ph_in_chain(void) { return me.chain; }

/* ---- the host's chain --------------------------------------------------------------------------------------------------- */
static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t ph_clock(void) { return ph_host.time + (uint64_t)ph_host.offset; }

static _Atomic int64_t moved_ms; /* real time of the clock's last movement */

static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void ph_clock_publish(void)
{
    atomic_store_explicit(&ph_page()->clock_ns, ph_clock(), memory_order_release);
    atomic_store_explicit(&moved_ms, real_ms(), memory_order_relaxed);
}

bool ph_clock_stands_still(void)
{
    enum { STILL_MS = 500 };
    return atomic_load(&ph_page()->blocked) == 0 && real_ms() - atomic_load_explicit(&moved_ms, memory_order_relaxed) > STILL_MS;
}

/* The first call of a thread only marks where its CPU time starts. A thread that has only ever asked (NCCL's watchdog polls
 * events) is not part of the chain: its time is not the job's. */
void ph_clock_advance(uint64_t cost_ns)
{
    if (me.paused) return;
    if (measured) {
        uint64_t cpu = thread_cpu_ns();
        if (me.chain) {
            uint64_t spent = cpu > me.cpu ? cpu - me.cpu : 0;
            ph_host.offset += (int64_t)((double)spent * scale) + (int64_t)cost_ns;
            atomic_fetch_add_explicit(&ph_page()->host_cpu_ns, spent, memory_order_relaxed);
        }
        me.cpu = cpu;
    }
    me.chain = true;
    atomic_fetch_add_explicit(&ph_page()->calls, 1, memory_order_relaxed);
    ph_clock_publish();
}

/* Where host time is not counted, a host that polls until its GPU is ready would ask for ever at one instant: from the second
 * time on, asking costs what the call does. */
void ph_clock_poll_failed(void)
{
    static uint64_t asked_at = UINT64_MAX;
    if (measured) return;
    pthread_mutex_lock(&ph_lock);
    if (ph_clock() == asked_at) ph_host.offset += (int64_t)ph_spec()->call_cost_ns;
    asked_at = ph_clock();
    ph_clock_publish();
    pthread_mutex_unlock(&ph_lock);
}

/* What the interceptor itself spent is not the job's: called on the way out. */
void ph_leave(void)
{
    if (measured && !me.paused) me.cpu = thread_cpu_ns();
}

void ph_host_pause(void)
{
    if (me.paused || !ph_touched()) return;
    pthread_mutex_lock(&ph_lock);
    if (me.chain) ph_clock_advance(0);
    pthread_mutex_unlock(&ph_lock);
    me.paused = true;
}

void ph_host_resume(void)
{
    if (!me.paused) return;
    me.paused = false;
    ph_leave();
}

uint64_t ph_now(void)
{
    pthread_mutex_lock(&ph_lock);
    if (me.chain) ph_clock_advance(0);
    uint64_t time = ph_clock();
    pthread_mutex_unlock(&ph_lock);
    return time;
}

void ph_host_cost(uint64_t nanoseconds)
{
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    ph_clock_advance(nanoseconds);
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
}

/* ---- joining the run ---------------------------------------------------------------------------------------------------- */
static struct timespec touch_real, touch_mono;

static void forget_in_child(void)
{
    pthread_mutex_init(&ph_lock, NULL);
    if (!ph_touched()) return;
    atomic_store(&touched, false);
    memset(&ph_host, 0, sizeof ph_host);
    memset(&me, 0, sizeof me);
    ph_heads_reset();
    ph_streams_reset();
    ph_hub_forget();
}

bool ph_touched(void) { return atomic_load_explicit(&touched, memory_order_acquire); }

void ph_touch(void)
{
    static bool fork_handler;
    if (ph_touched()) return;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!ph_touched()) {
        if (!fork_handler) pthread_atfork(NULL, NULL, forget_in_child);
        fork_handler = true;
        const char *mode = ph_env("PHANTORA_HOST_TIME"), *factor = ph_env("PHANTORA_HOST_SCALE");
        measured = !mode || strcmp(mode, "none") != 0;
        if (factor) scale = strtod(factor, NULL);
        ph_stragglers_read();
        ph_hub_connect();
        ph_node_known(0, 0);
        clock_gettime(CLOCK_REALTIME, &touch_real);
        clock_gettime(CLOCK_MONOTONIC, &touch_mono);
        atomic_store_explicit(&touched, true, memory_order_release);
        ph_values_load();
        me.chain = true;
        me.cpu = thread_cpu_ns();
    }
    pthread_mutex_unlock(&once);
}

/* For the start-up hook that shows simulated time through Python's clocks: 0 before CUDA is touched, else 1 + elapsed. */
PH_EXPORT uint64_t phantora_elapsed_ns(void);
PH_EXPORT uint64_t phantora_elapsed_ns(void)
{
    if (!ph_touched()) return 0;
    uint64_t elapsed = 1 + ph_now();
    ph_leave();
    return elapsed;
}

PH_EXPORT int64_t phantora_touch_clock(int clock);
PH_EXPORT int64_t phantora_touch_clock(int clock)
{
    const struct timespec *t = clock == CLOCK_REALTIME ? &touch_real : &touch_mono;
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

PH_EXPORT void phantora_report_peaks(uint64_t allocated, uint64_t reserved);
PH_EXPORT void phantora_report_peaks(uint64_t allocated, uint64_t reserved)
{
    if (!ph_touched()) return;
    ph_page()->torch_peak_allocated = allocated;
    ph_page()->torch_peak_reserved = reserved;
}

