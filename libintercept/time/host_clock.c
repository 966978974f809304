/* time/host_clock.c - the rank's host time, and how a process joins the run.
 *
 * Why it exists: host time is a chain. Between two intercepted calls it advances by the job's own
 * time, multiplied by a scale. That time is the calling thread's CPU time, or the recorded time of
 * the call site (time/host_model.c). Each call adds its modelled cost. The host clock is the last
 * anchor (a time that the hub has answered) plus an offset. */
#include "time/host_clock.h"
#include "backend.h"
#include "base/api.h"
#include "base/cpu_time.h"
#include "base/device.h"
#include "base/environment.h"
#include "base/fork.h"
#include "base/real_time.h"
#include "base/threads.h"
#include "link/connection.h"
#include "link/flush.h"
#include "time/gpu_faults.h"
#include "time/host_model.h"
#include "time/host_pace.h"
#include "time/host_samples.h"
#include "time/launch_queue.h"
#include "time/origin.h"
#include "time/timeline.h"
#include "time/untold.h"
#include "trace/trace_log.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t PH_FREE_IN_CHILD ph_lock = PTHREAD_MUTEX_INITIALIZER;
struct ph_host ph_host;
static _Atomic bool touched;
static enum { AUTO, MEASURED, MODEL, NONE } mode;
static bool repeats; /* the clock moves in one order of calls, so the run can repeat to the byte */
static double scale = 1.0;
/* for --host-time auto: hosts differ and vary */
static struct ph_host_pace pace;
static bool jitter;
/* CPU time that one read of the CPU clock itself takes */
static uint64_t look_ns;
static _Thread_local struct {
    bool chain;
    unsigned paused;  /* pauses nest */
    int tid;          /* set when the thread joins the chain */
    uint64_t cpu;     /* CPU time at which the thread last returned to the job */
    uint64_t pending; /* the job's time since the last recorded call site */
    uint64_t owed;    /* CPU time that observing operators takes; not yet taken off the job's */
    uint64_t ours;    /* real time since which the thread observes an operator; 0: it does not */
    bool first;       /* and is the first of our observers to see it */
    uint64_t off;     /* real time less CPU time: how long the thread has not run */
    uint64_t woken;   /* CPU time at which it was last found to have got a core again */
} me;

bool ph_in_chain(void) { return me.chain; }

/* ---- the host's chain ---- */
static uint64_t at_most(uint64_t limit_ns, uint64_t ns) { return ns < limit_ns ? ns : limit_ns; }

/* What an observation costs the job outside of our callback. PyTorch looks for observers and packs
 * the operator's arguments and results, and the job's code then finds its caches displaced. All
 * this takes HIDDEN percent of the callback's time: like the callback, it is slow where the caches
 * are cold. docs/host-time.md#what-observing-costs has the measurements. */
static uint64_t hidden_ns(uint64_t spent_ns)
{
    enum { HIDDEN = 250, USUAL_NS = 2000 }; /* a longer callback had more to do than most */
    return at_most(USUAL_NS, spent_ns) * HIDDEN / 100;
}

/* By how much the job's code is slower after a pause in which an operator ran on the CPU for its
 * values: that run has displaced the job's code and data from the caches. */
static uint64_t after_pause_ns(uint64_t paused_ns)
{
    enum { SHARE = 20, MOST_NS = 10000 }; /* in percent */
    return at_most(MOST_NS, paused_ns * SHARE / 100);
}

/* Of an observation that goes on, what is over becomes owed. Real time stands for CPU time: reading
 * it makes no system call, and two of them per operator would slow the job's own code through the
 * caches. */
static void owe_ours(void)
{
    enum { LONGEST_NS = 20000 }; /* in a longer time the thread did not run */
    if (!me.ours) return;
    uint64_t now = ph_real_ns(), spent = now - me.ours;
    me.owed += at_most(LONGEST_NS, spent) + (me.first ? hidden_ns(spent) : 0);
    me.ours = now;
}

/* Notes whether the thread has waited for a core, or for anything else, since it was last here. */
static void look_for_waits(uint64_t real, uint64_t cpu)
{
    enum { SHORTEST_NS = 3000 };
    if (real - cpu > me.off + SHORTEST_NS) me.woken = cpu;
    me.off = real - cpu;
}

/* From here on the thread's CPU time counts. What of an observation is over does not. */
static void count_from_here(void)
{
    uint64_t real = ph_real_ns();
    me.cpu = ph_thread_cpu_ns();
    look_for_waits(real, me.cpu);
    if (me.ours) me.ours = ph_real_ns();
}

uint64_t ph_clock(void) { return ph_host.time + (uint64_t)ph_host.offset + ph_host.ahead; }

static _Atomic int64_t moved_ms; /* real time of the clock's last movement */
static _Atomic int mover;        /* the thread that moved it; set only if `repeats` */

static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void ph_clock_publish(void)
{
    atomic_store_explicit(&ph_stats()->clock_ns, ph_clock(), memory_order_release);
    atomic_store_explicit(&moved_ms, real_ms(), memory_order_relaxed);
    if (repeats && me.chain) atomic_store_explicit(&mover, me.tid, memory_order_relaxed);
}

bool ph_clock_repeats(void) { return repeats; }

/* Whether the host stands still because it waits for its observers, the threads that only poll. In
 * runs that repeat, a rank that waits in a socket for a later rank must look the same as one that
 * does not wait. At its end PyTorch joins the watchdog thread, which ends once all communication is
 * over. Then the host does wait for an observer. */
static bool waits_for_observers(int64_t still)
{
    enum { LONG_MS = 10000 };
    int tid = atomic_load_explicit(&mover, memory_order_relaxed);
    /* a busy thread will go on, so only a sleeping one counts */
    return ph_thread_joins(tid, ph_thread_id()) || (still > LONG_MS && ph_thread_sleeps(tid));
}

bool ph_clock_stands_still(void)
{
    enum { STILL_MS = 500 };
    int64_t still = real_ms() - atomic_load_explicit(&moved_ms, memory_order_relaxed);
    if (atomic_load(&ph_stats()->blocked) != 0 || still <= STILL_MS) return false;
    return !repeats || waits_for_observers(still);
}

/* Host time is charged by call site (time/host_model.c). */
static bool by_call_site(void) { return mode == MODEL || mode == AUTO; }

/* A leader records host times even when its own run charges none. */
static bool measuring(void)
{
    return mode == MEASURED || (mode == AUTO && ph_host_model_measures()) ||
           (mode == NONE && ph_host_model_recording());
}

static void spend(uint64_t job_ns, uint64_t cost_ns)
{
    if (mode == NONE) return;
    double host_ns = (double)job_ns * scale + (double)cost_ns;
    if (jitter) host_ns *= ph_host_pace(&pace, cost_ns);
    ph_host.offset += (int64_t)host_ns;
    ph_call_cost_ns = cost_ns;
    atomic_fetch_add_explicit(&ph_stats()->host_cpu_ns, job_ns, memory_order_relaxed);
    if (!by_call_site()) return;
    atomic_fetch_add_explicit(&ph_stats()->host_calls[PH_HOST_LEVEL_CALL], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&ph_stats()->host_ns[PH_HOST_LEVEL_CALL], cost_ns,
                              memory_order_relaxed);
}

static uint64_t spent_until(uint64_t cpu)
{
    return cpu > me.cpu + look_ns ? cpu - me.cpu - look_ns : 0;
}

/* The job's time since the calling thread last returned to it: the thread's CPU time, less what
 * observing its operators took. */
static uint64_t job_cpu_ns(void)
{
    uint64_t cpu = ph_thread_cpu_ns(), spent = spent_until(cpu);
    owe_ours();
    uint64_t ours = me.owed < spent ? me.owed : spent;
    me.cpu = cpu;
    me.owed -= ours;
    return spent - ours;
}

/* The first call of a thread only marks where its CPU time starts. A thread that only makes
 * queries, such as NCCL's watchdog, is not part of the chain: its time is not the job's. */
static void advance_measured(enum ph_call call)
{
    uint64_t spent = job_cpu_ns();
    if (!me.chain) {
        ph_call_site_enter(call);
        return;
    }
    spend(spent, ph_spec()->call_cost[call]);
    me.pending += spent;
    if (!ph_host_model_recording() || !ph_call_site_counts(call)) return;
    ph_call_site_passed(call, me.pending);
    me.pending = 0;
}

/* In a run that repeats, the order of calls must be the same each time. Some threads never compute
 * or communicate: they pin memory, prefetch, watch or log. They run concurrently with the job at
 * their own pace. So they neither advance the clock nor change the history. */
static bool in_order(enum ph_call call)
{
    if (!me.chain && call > PH_CALL_COMM) return false;
    if (!me.tid) me.tid = ph_thread_id();
    return true;
}

/* While a thread does not run, others use its core's caches: far more often on this machine, where
 * ranks share few cores, than on a server. So its next samples are longer than there. */
static uint64_t call_site_ns(enum ph_call call)
{
    enum { COLD_NS = 300000 };
    if (!measuring() || !me.chain) return ph_call_site_time(call);
    me.pending += job_cpu_ns();
    if (!ph_call_site_counts(call)) return 0;
    uint64_t spent = me.pending;
    me.pending = 0;
    look_for_waits(ph_real_ns(), me.cpu);
    return ph_call_site_measured(call, spent, me.cpu - me.woken < spent + COLD_NS);
}

void ph_clock_advance(enum ph_call call)
{
    if (me.paused) return;
    if (repeats && !in_order(call)) return;
    if (by_call_site())
        spend(call_site_ns(call), ph_spec()->call_cost[call]);
    else if (measuring())
        advance_measured(call);
    me.chain = true;
    atomic_fetch_add_explicit(&ph_stats()->calls, 1, memory_order_relaxed);
    ph_clock_publish();
}

/* Where host time is not counted, a host that polls until its GPU is ready would poll at one
 * instant for ever. So each repeated query at the same time advances the clock by the cost of the
 * call. */
void ph_clock_poll_failed(void)
{
    static uint64_t asked_at = UINT64_MAX;
    if (mode != NONE) return;
    pthread_mutex_lock(&ph_lock);
    if (ph_clock() == asked_at) ph_host.offset += (int64_t)ph_spec()->call_cost[PH_CALL_QUERY];
    asked_at = ph_clock();
    ph_clock_publish();
    pthread_mutex_unlock(&ph_lock);
}

/* The interceptor's own CPU time is not the job's. Called on the way out of a call. */
void ph_leave(void)
{
    if (!me.paused && measuring()) count_from_here();
}

void ph_host_pause(void)
{
    if (!ph_touched() || me.paused++) return;
    if (me.chain && measuring()) { /* this time is part of the time before the next call */
        pthread_mutex_lock(&ph_lock);
        uint64_t spent = job_cpu_ns();
        if (mode != AUTO) spend(spent, 0);
        me.pending += spent;
        ph_clock_publish();
        pthread_mutex_unlock(&ph_lock);
    }
}

void ph_host_resume(void)
{
    if (!me.paused || --me.paused) return;
    uint64_t before = me.cpu;
    ph_leave();
    if (me.ours && me.cpu > before) me.owed += after_pause_ns(me.cpu - before);
}

/* ---- the cost of observing operators (values/callback.cpp, hollow.cpp) ---- */
PH_API(void, phantora_values_pause, (void)) { ph_host_pause(); }
PH_API(void, phantora_values_resume, (void)) { ph_host_resume(); }
PH_API(int, phantora_values_measuring, (void))
{
    return ph_touched() && me.chain && !me.paused && measuring();
}
/* The thread begins to observe an operator. Until it ends, its time is not the job's. The `first`
 * of our observers to see the operator also accounts for PyTorch's own work for observers. */
PH_API(void, phantora_values_observe_begin, (int first))
{
    if (me.paused) return;
    me.first = first;
    me.ours = ph_real_ns();
}
PH_API(void, phantora_values_observe_end, (void))
{
    owe_ours();
    me.ours = 0;
}

uint64_t ph_now(void)
{
    pthread_mutex_lock(&ph_lock);
    if (me.chain) ph_clock_advance(PH_CALL_CLOCK);
    uint64_t time = ph_clock();
    pthread_mutex_unlock(&ph_lock);
    return time;
}

void ph_host_cost(uint64_t cost_ns)
{
    pthread_mutex_lock(&ph_lock);
    if (!me.paused && mode != NONE) ph_host.offset += (int64_t)cost_ns, ph_call_cost_ns += cost_ns;
    ph_clock_publish();
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
}

void ph_host_call(enum ph_call call)
{
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    ph_clock_advance(call);
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
}

void ph_host_joins(uint64_t rank, uint64_t ranks)
{
    pthread_mutex_lock(&ph_lock);
    ph_host_pace_join(&pace, rank, ranks);
    pthread_mutex_unlock(&ph_lock);
}

/* ---- requests ---- */
uint64_t ph_request_begin_locked(struct ph_pack *body)
{
    uint64_t req = ph_request_id();
    ph_pack_uint(body, req);
    ph_pack_uint(body, ph_clock());
    ph_extra_pack(body, false, 0);
    return req;
}

bool ph_request_locked(enum ph_message type, uint64_t req, struct ph_pack *body, uint32_t fields,
                       struct ph_reply *reply, int timeout_ms)
{
    atomic_store(&ph_stats()->blocked, 1);
    ph_send(type, body, fields);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(body);
    bool answered = ph_wait(req, reply, timeout_ms);
    pthread_mutex_lock(&ph_lock);
    return answered;
}

/* ---- for the trace ---- */
static struct ph_moment moment_now(void)
{
    struct ph_moment now;
    pthread_mutex_lock(&ph_lock);
    ph_host_moment(&now.vertex, &now.offset);
    pthread_mutex_unlock(&ph_lock);
    return now;
}

/* The trace reads moments between calls without making a call. So a traced run has the same times
 * as an untraced one. */
static uint64_t peek(struct ph_moment *moment)
{
    if (me.paused || !ph_touched()) return 0;
    uint64_t cpu = ph_thread_cpu_ns();
    pthread_mutex_lock(&ph_lock);
    ph_host_moment(&moment->vertex, &moment->offset);
    pthread_mutex_unlock(&ph_lock);
    uint64_t spent = mode == MEASURED && me.chain ? spent_until(cpu) : 0;
    if (spent > me.owed) moment->offset += (int64_t)((double)(spent - me.owed) * scale);
    return cpu;
}

static void excuse(uint64_t cpu_ns)
{
    if (me.paused || !measuring()) return;
    uint64_t excused = ph_thread_cpu_ns() - cpu_ns + look_ns;
    me.cpu += excused;
    if (me.ours) me.ours += excused;
}

static const struct ph_trace_clock trace_clock = {moment_now, peek, excuse};

/* ---- joining the run ---- */
static struct timespec touch_mono;

static void forget(void)
{
    if (ph_touched()) ph_forked_after_use();
    atomic_store(&touched, false);
    memset(&ph_host, 0, sizeof ph_host);
    memset(&me, 0, sizeof me);
}

static void read_mode(void)
{
    enum { LOOKS = 64 };
    const char *name = ph_env("PHANTORA_HOST_TIME"), *factor = ph_env("PHANTORA_HOST_SCALE");
    mode = !name || strcmp(name, "measured") == 0 ? MEASURED
           : strcmp(name, "auto") == 0            ? AUTO
           : strcmp(name, "model") == 0           ? MODEL
                                                  : NONE;
    if (factor) scale = strtod(factor, NULL);
    /* A leader records, so it measures: a table may not know its call sites yet. */
    if (by_call_site() && ph_backend.leads) mode = MEASURED;
    repeats = mode != MEASURED && !ph_backend.leads;
    if (by_call_site()) ph_host_model_map();
    jitter = mode == AUTO && !ph_env("PHANTORA_HOST_MEANS");
    ph_host_pace_start(&pace);
    /* a leader records and sends by itself (leader/measure/measure.c) */
    if (mode == MEASURED && ph_env("PHANTORA_RECORD_HOST") && !ph_backend.leads) {
        ph_host_model_record();
        ph_host_model_send_at_exit();
    }
    look_ns = UINT64_MAX;
    for (int i = 0; i < LOOKS && mode != MODEL; i++) {
        uint64_t before = ph_thread_cpu_ns(), apart = ph_thread_cpu_ns() - before;
        if (apart < look_ns) look_ns = apart;
    }
}

bool ph_touched(void) { return atomic_load_explicit(&touched, memory_order_acquire); }

void ph_touch(void)
{
    if (ph_touched()) return;
    static pthread_mutex_t PH_FREE_IN_CHILD once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!ph_touched()) {
        ph_forget_in_child(forget);
        ph_expressions_start();
        ph_timeline_start();
        ph_untold_start();
        ph_flush_at_exit(); /* before others register what sends messages */
        read_mode();
        ph_gpu_faults_read();
        const char *page = ph_hub_connect();
        ph_trace_start(page, &trace_clock);
        ph_vertex_known(0, 0);
        ph_origin_join();
        clock_gettime(CLOCK_MONOTONIC, &touch_mono);
        atomic_store_explicit(&touched, true, memory_order_release);
        ph_backend.joined();
        me.chain = true;
        me.cpu = ph_thread_cpu_ns();
    }
    pthread_mutex_unlock(&once);
}

/* For the start-up hook that shows simulated time through Python's clocks. 0 before the process
 * uses CUDA, else 1 + elapsed ns. */
PH_API(uint64_t, phantora_elapsed_ns, (void))
{
    if (!ph_touched()) return 0;
    ph_now();
    pthread_mutex_lock(&ph_lock);
    if (me.chain && ph_host.open) ph_host_settle_locked();
    uint64_t elapsed = 1 + ph_clock();
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
    return elapsed;
}

uint64_t ph_clock_look(void)
{
    uint64_t cpu = me.chain ? ph_thread_cpu_ns() : 0;
    pthread_mutex_lock(&ph_lock);
    if (me.chain && ph_host.open) ph_host_settle_locked();
    uint64_t time = ph_clock();
    pthread_mutex_unlock(&ph_lock);
    uint64_t spent = mode == MEASURED && me.chain && !me.paused ? spent_until(cpu) : 0;
    return spent > me.owed ? time + (uint64_t)((double)(spent - me.owed) * scale) : time;
}

/* A thread outside of the chain waits beside the job. */
void ph_host_pass(uint64_t ns)
{
    if (!ph_touched() || !me.chain) return;
    pthread_mutex_lock(&ph_lock);
    ph_host.offset += (int64_t)ns;
    ph_clock_publish();
    pthread_mutex_unlock(&ph_lock);
}

/* for Python's time.sleep */
PH_API(void, phantora_pass_ns, (uint64_t ns)) { ph_host_pass(ns); }

int64_t ph_touched_at(void) { return touch_mono.tv_sec * 1000000000ll + touch_mono.tv_nsec; }

PH_API(int64_t, phantora_touch_clock, (int clock))
{
    if (clock == CLOCK_REALTIME) return ph_origin_ns();
    /* as of ph_origin_ns: a whole second that is not in the past */
    if (by_call_site()) return (touch_mono.tv_sec + 1) * 1000000000ll;
    return ph_touched_at();
}

PH_API(void, phantora_report_peaks, (uint64_t allocated, uint64_t reserved))
{
    if (!ph_touched()) return;
    ph_stats()->torch_peak_allocated = allocated;
    ph_stats()->torch_peak_reserved = reserved;
}
