/* measure.c - how a call of the leader is timed: CUPTI observes it; if its duration is not known
 * yet, the leader waits for it; later calls add samples.
 *
 * Why it exists: the leader's own timeline is simulated like every rank's, so each call needs a
 * duration when it is made. The first time it comes from the call itself. Rule: only the outermost
 * wrapped call of a thread counts, with all that it launches; cuBLAS calls cuBLASLt through the
 * same symbols as PyTorch.
 *
 * Records are settled (samples.c) when all observed work is finished: after a call that was waited
 * for, every BATCH calls, before a fork, and at exit. Streams that carry collectives may wait for
 * other ranks, which may wait for us. So when a call is waited for, or the process forks or ends,
 * they are only polled for PATIENCE_NS, and unfinished work gives no sample.
 *
 * CUPTI makes real calls far slower, even with all its activities disabled. So host costs come from
 * a leader that never loads it (PHANTORA_LEAD_RECORD=host, and =values as well). Such a leader
 * observes nothing and asks for durations as a simulated rank does. */
#include "leader/measure/measure.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/real_time.h"
#include "link/flush.h"
#include "trace/trace_log.h"
#include "time/cpu_score.h"
#include "time/host_model.h"
#include "work/duration.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 16384,
    BATCH = 2000,
    STREAMS = 64,
    NESTED = 1,
    UNOBSERVED = 2,
    FIRST_TOKEN = 16,
    COPYING_ID = 8
};
/* cudaStreamCaptureMode: a job's capture must not fail because we wait; cudaError_t */
enum { RELAXED = 2, NOT_READY = 600 };
#define PATIENCE_NS 20000000ull
#define EXIT_PATIENCE_NS 2000000000ull

int cudaStreamQuery(void *stream);
int cudaPeekAtLastError(void);
int cudaGetLastError(void);
int cudaThreadExchangeStreamCaptureMode(int *mode);

/* guards all of the following, and samples.c; taken before ph_lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool started, observing;
static struct ph_call_slot slots[SLOTS];
static struct ph_records records;
static uint64_t next_token = FIRST_TOKEN, settled_at = FIRST_TOKEN;
static uint64_t waits, settles, settling_ns; /* for PHANTORA_LEAD_DEBUG */
static void *busy[STREAMS];                  /* real streams with unsettled calls */
static int busy_count;
static bool busy_more; /* more streams than fit: then idleness cannot be determined */
static _Thread_local struct {
    int depth, copying;
    bool settling, wanted;
    struct ph_measured *what;
    const struct ph_signature *signature; /* the caller's, which outlives the call */
    void *stream;
} me;

bool ph_lead_inside(void) { return me.depth > 0; }

void ph_lead_not_the_job(void)
{
    ph_host_pause();
    me.depth++;
}

enum ph_recorded ph_lead_records(void)
{
    static _Atomic int known; /* 0: not yet */
    static const char *const names[] = {"kernels", "host", "values"};
    const char *choice = ph_env("PHANTORA_LEAD_RECORD");
    int found = choice ? 3 : PH_RECORD_KERNELS;
    if (known) return (enum ph_recorded)(known - 1);
    for (int i = 0; i < 3 && choice; i++)
        if (strcmp(choice, names[i]) == 0) found = i;
    if (found == 3)
        ph_die("PHANTORA_LEAD_RECORD=%s: a leader records kernels, host or values", choice);
    known = found + 1;
    return (enum ph_recorded)found;
}

bool ph_lead_measures(void) { return ph_lead_records() == PH_RECORD_KERNELS; }

static struct ph_call_slot *slot(uint64_t token) { return &slots[token % SLOTS]; }

/* ---- waiting and settling ---- */
/* The job must not find the result of our query as its thread's last error. */
static int query(void *stream)
{
    bool clean = PH_REAL(cudaPeekAtLastError)() == 0;
    int status = PH_REAL(cudaStreamQuery)(stream);
    if (status && clean) PH_REAL(cudaGetLastError)();
    return status;
}

/* The host clock stands still. ph_leave: the time spent in here so far is not the job's. */
static void wait_for(void *stream)
{
    ph_leave();
    ph_lead_wait_stream(stream);
    waits++;
}

/* Polls every stream with open calls except `except`, until they are idle or patience ends. True
 * when all are idle. A stream that is being captured counts as busy: a query would break the
 * capture. */
static bool idle_locked(void *except, uint64_t patience)
{
    int mode = RELAXED;
    bool idle = !busy_more;
    uint64_t deadline = ph_real_ns() + patience;
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    for (int i = 0; i < busy_count; i++) {
        int status = 0;
        if (busy[i] == except) continue;
        if (ph_lead_capturing(busy[i])) {
            idle = false;
            continue;
        }
        while ((status = query(busy[i])) == NOT_READY && ph_real_ns() < deadline) sched_yield();
        idle &= status == 0;
    }
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    return idle;
}

/* Waits for `own`, then polls the others. */
static bool wait_own_locked(void *own)
{
    int mode = RELAXED;
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    wait_for(own);
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    return idle_locked(own, PATIENCE_NS);
}

/* A full queue can be seconds of work, longer than any patience. So every stream is waited for that
 * is not being captured, and the hub knows that we wait. */
static bool wait_all_locked(void)
{
    bool all = !busy_more;
    int mode = RELAXED;
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    for (int i = 0; i < busy_count; i++)
        if (ph_lead_capturing(busy[i]))
            all = false;
        else
            wait_for(busy[i]);
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    return all;
}

/* True when external ids are missing (ph_samples_settle). */
static bool settle_locked(bool idle, bool all)
{
    uint64_t before = ph_real_ns();
    ph_cupti_flush(&records, all);
    bool missing = ph_samples_settle(&records, slots, SLOTS, idle);
    settles++;
    settling_ns += ph_real_ns() - before;
    settled_at = next_token;
    if (idle) busy_count = 0;
    if (ph_samples_kept() >= BATCH) ph_samples_send(false);
    return missing;
}

/* ---- the end of the process ---- */
static void send_host(void)
{
    struct ph_pack body = {0};
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_map(&body, 3);
    ph_pack_str(&body, "score"), ph_pack_uint(&body, phantora_host_score());
    if (ph_lead_measures()) {
        pthread_mutex_lock(&lock); /* threads that have not ended may go on */
        ph_samples_pack_host(&body);
        pthread_mutex_unlock(&lock);
    } else {
        ph_pack_str(&body, "calls"), ph_cost_pack(&body);
        ph_pack_str(&body, "sites"), ph_host_model_pack(&body);
    }
    ph_send(PH_MESSAGE_HOST, &body, 2);
    ph_pack_free(&body);
}

static void settle_all_locked(uint64_t patience)
{
    if (observing) settle_locked(idle_locked(NULL, patience), true);
    uint64_t lost = 0;
    for (size_t i = 0; i < SLOTS; i++) lost += slots[i].token && slots[i].ended;
    ph_samples_count_lost(lost);
    ph_samples_send(true);
}

static _Atomic bool ending;
bool ph_lead_ending(void) { return atomic_load(&ending); }

static void at_exit(void)
{
    atomic_store(&ending, true);
    if (!ph_hub_connected()) return;
    ph_gpu_load_end();
    pthread_mutex_lock(&lock);
    settle_all_locked(EXIT_PATIENCE_NS);
    if (ph_env("PHANTORA_LEAD_DEBUG")) {
        ph_samples_debug();
        fprintf(stderr,
                "phantora-ns: leading: %llu calls, waited for %llu times; records settled %llu "
                "times in %llu ms; GPU kept warm for %.6f s\n",
                (unsigned long long)(next_token - FIRST_TOKEN), (unsigned long long)waits,
                (unsigned long long)settles, (unsigned long long)settling_ns / 1000000,
                (double)ph_gpu_load_ns() / 1e9);
    }
    pthread_mutex_unlock(&lock);
    send_host();
    ph_flush("the last durations");
}

static void before_fork(void)
{
    ph_gpu_load_stop();
    pthread_mutex_lock(&lock);
    if (observing && !me.settling)
        settle_locked(idle_locked(NULL, PATIENCE_NS), false), ph_samples_send(false);
}

static void in_parent(void) { pthread_mutex_unlock(&lock); }

/* The child has no GPU context, and does nothing here until it uses the GPU. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(slots, 0, sizeof slots);
    memset(&records, 0, sizeof records);
    memset(&me, 0, sizeof me);
    ph_samples_reset();
    ph_gpu_load_reset();
    started = observing = false;
    busy_count = 0;
}

static void start_locked(void)
{
    static bool handlers;
    observing = ph_lead_measures();
    /* calls that a library makes meanwhile are not the job's, and we hold the lock */
    me.depth++;
    if (observing)
        ph_cupti_start();
    else if (ph_lead_records() == PH_RECORD_HOST)
        ph_cost_record(), ph_host_model_record();
    me.depth--;
    if (!handlers) atexit(at_exit), pthread_atfork(before_fork, in_parent, in_child);
    handlers = started = true;
}

/* ---- calls ---- */
/* Whether its duration has been measured, by this process or by whoever wrote the table. */
static bool is_measured(struct ph_measured *what)
{
    struct ph_time time;
    if (!what->timed)
        what->timed =
            ph_duration_known(what->signature.key, &time) && time.source == PH_SOURCE_EXACT;
    return what->timed;
}

uint64_t ph_lead_begin(void *stream, const struct ph_signature *signature)
{
    uint64_t token = UNOBSERVED;
    if (me.depth++ > 0) return NESTED;
    ph_host_call(signature->call);
    PH_TRACE(ph_signature_trace(signature));
    ph_host_pause(); /* calls that the real library makes are part of this call */
    ph_gpu_load_stop();
    pthread_mutex_lock(&lock);
    if (!started) start_locked();
    me.settling = true;
    me.stream = stream;
    me.signature = signature;
    me.what = ph_measured_find(signature);
    if (observing && next_token - settled_at >= BATCH) settle_locked(wait_all_locked(), true);
    bool wanted = observing && !is_measured(me.what) && !me.copying && !ph_lead_capturing(stream);
    if (wanted) {
        ph_gpu_load_forbid(true);
        wait_own_locked(stream); /* concurrent work would slow it down */
    }
    me.wanted = wanted;
    if (observing && !me.copying) {
        token = next_token++;
        struct ph_call_slot *fresh = slot(token);
        if (fresh->token && fresh->ended) ph_samples_count_lost(1);
        int i = 0;
        while (i < busy_count && busy[i] != stream) i++;
        if (i == busy_count && busy_count < STREAMS)
            busy[busy_count++] = stream;
        else if (i == busy_count)
            busy_more = true;
        *fresh = (struct ph_call_slot){
            .token = token, .what = me.what, .wanted = wanted, .called_ns = ph_cupti_now()};
        ph_cupti_push(token);
    }
    me.settling = false;
    pthread_mutex_unlock(&lock);
    return token;
}

/* Sends the first sample to the hub. If the call did nothing that CUPTI saw, there is none, and the
 * hub will estimate. */
static void learn_locked(uint64_t token, struct ph_measured *what)
{
    me.settling = true;
    bool missing = settle_locked(wait_own_locked(me.stream), true);
    if (what->first_ns) ph_gpu_load_allow();
    if (what->first_ns && !what->sent) ph_samples_send_first(what);
    /* its next call may be seen */
    else if (missing && ph_cupti_escalate())
        what->retry = true;
    me.settling = false;
    if (slot(token)->token == token) *slot(token) = (struct ph_call_slot){0};
}

static void end(uint64_t token, bool failed)
{
    struct ph_measured *what = me.what;
    if (token == NESTED) {
        me.depth--;
        return;
    }
    ph_host_resume();
    if (token == UNOBSERVED) {
        pthread_mutex_lock(&lock);
    } else {
        uint64_t now = ph_cupti_now();
        ph_cupti_pop();
        pthread_mutex_lock(&lock);
        if (slot(token)->token == token)
            slot(token)->ended = true, slot(token)->failed = failed, slot(token)->returned_ns = now;
        if (slot(token)->token == token && slot(token)->wanted && !failed)
            learn_locked(token, what);
    }
    bool asked = what->timed || !observing;
    what->timed |= !failed && !what->retry;
    what->retry = false;
    pthread_mutex_unlock(&lock);
    if (me.wanted) ph_gpu_load_forbid(false);
    /* Without the lock, because the hub may let us wait. The table's value, with what the hub has
     * learned since, holds for us as for other ranks. */
    if (!failed) {
        struct ph_time time;
        if (!asked || !ph_duration_known(what->signature.key, &time))
            time = ph_duration_ask(me.signature);
        ph_run(ph_shadow_stream(me.stream), time, me.signature->copies_inside);
        ph_gpu_load_saw(me.stream, time.duration_ns);
        if (me.signature->kind != PH_SIGNATURE_MEMORY)
            atomic_fetch_add_explicit(&ph_stats()->kernel_launches, 1, memory_order_relaxed);
    }
    me.depth--;
    PH_TRACE_END();
    ph_leave();
}

void ph_lead_end(uint64_t token) { end(token, false); }
void ph_lead_cancel(uint64_t token) { end(token, true); }

void ph_lead_copying(bool on)
{
    me.copying += on ? 1 : -1;
    if (me.copying != on) return; /* only the outermost call counts */
    pthread_mutex_lock(&lock);
    if (!started) start_locked();
    bool observed = observing;
    pthread_mutex_unlock(&lock);
    if (on) ph_gpu_load_stop();
    if (observed && on)
        ph_cupti_push(COPYING_ID);
    else if (observed)
        ph_cupti_pop();
}

void ph_lead_stream_gone(void *real_stream)
{
    ph_gpu_load_gone(real_stream);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < busy_count; i++)
        if (busy[i] == real_stream) {
            if (observing) settle_locked(wait_own_locked(real_stream), true);
            for (int j = 0; j < busy_count; j++)
                if (busy[j] == real_stream) busy[j] = busy[--busy_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}
