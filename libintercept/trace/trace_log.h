/* trace/trace_log.h - the log that a rank writes for `--trace`.
 *
 * Why it exists: all layers from the host clock to NCCL report to the log, so the log lies below
 * them. It knows nothing of streams or expressions: the reporting layer says what to log. The log
 * needs only the host clock, which it receives at its start.
 *
 * Rule: call these functions only through PH_TRACE or PH_TRACE_END. Each of the two is one
 * predictable branch when nothing is traced. */
#ifndef PH_TRACELOG_H
#define PH_TRACELOG_H
#include "base/msgpack.h"
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stdint.h>

/* this process is traced, and the current step is among the requested ones */
extern bool ph_tracing;
extern _Thread_local int ph_trace_depth; /* nesting depth of this thread's open calls */
/* modelled cost of this thread's last call; the host clock sets it */
extern _Thread_local uint64_t ph_call_cost_ns;
#define PH_TRACE(call) ((void)(__builtin_expect(ph_tracing, 0) && (call, 0)))
#define PH_TRACE_END() ((void)(__builtin_expect(ph_trace_depth, 0) && (ph_trace_call_end(), 0)))

/* ---- the host clock ---- */
struct ph_trace_clock {
    struct ph_moment (*now)(void);
    /* Reads the clock without moving it. Returns the thread's CPU time, for `excuse`. 0: the
     * interceptor is running, not the job. */
    uint64_t (*peek)(struct ph_moment *moment);
    void (*excuse)(uint64_t cpu_ns); /* the CPU time since `peek` was not the job's */
};
/* Called once the rank statistics exist; `page_name` is their file name. Reads PHANTORA_TRACE_RANKS
 * and _STEPS. */
void ph_trace_start(const char *page_name, const struct ph_trace_clock *clock);

/* ---- profiles inside of the job: simulated/profiler/ ---- */
struct ph_profile_observer {
    uint64_t (*tick)(void); /* real time, in units of the observer's */
    /* A call was logged; ticks are those of its begin and end. The log is locked. */
    void (*called)(const char *name, uint32_t correlation, uint64_t begin, uint64_t end);
};
/* Logs calls and GPU work of every step from now on, and tells the observer of each call; NULL: no
 * longer. `since` receives the place in the log. False when the log cannot be written. */
bool ph_trace_profile(const struct ph_profile_observer *observer, uint64_t *since);

/* ---- host calls: reported after the host clock has added the call's cost, without ph_lock ---- */
/* sets the name of this thread's next call, instead of the usual name */
void ph_trace_api(const char *name);
/* a call that took its modelled cost and no other time */
void ph_trace_call(const char *name);
/* Begins and ends a call that may wait. Calls nested in it are not logged. */
void ph_trace_call_begin(const char *name);
void ph_trace_call_end(void);

/* ---- ranges that need not nest with operators: trace/nvtx.c ---- */
/* False when nothing is traced now; else `range` is to be given to the end, on any thread. */
bool ph_trace_range_begin(const char *name, struct ph_log_operator *range);
void ph_trace_range_end(struct ph_log_operator *range);
/* Whether this process is to be traced. May be called before it uses CUDA. */
int phantora_trace_wanted(void);

/* ---- GPU work ---- */
/* describes the kernel of this thread's next launch */
void ph_trace_code(uint32_t registers, uint32_t static_shared);
/* Begins the call that puts work on a stream. `signature` is the packed signature of this thread's
 * next work. */
void ph_trace_launch(const char *call, const struct ph_pack *signature);
/* Sets the signature of this thread's next work, within a call that launches a CUDA graph. */
void ph_trace_replayed(const struct ph_pack *signature, uint32_t registers, uint32_t static_shared);
enum { PH_TRACE_LEGACY_STREAM = 7 }; /* CUPTI's number of the legacy stream */
struct ph_trace_work {
    uint32_t stream, source;
    int device;
    uint64_t duration_ns, contention_ns;
};
/* Logs work that was put on a stream. `head` is the stream's time expression after that work:
 * `head_bytes` of struct ph_log_term. Called with ph_lock held. */
void ph_trace_work_locked(const struct ph_trace_work *work, const void *head, size_t head_bytes);

/* An operation joins a group. The enclosing operator will describe the group's launch. */
void ph_trace_queued(void);
/* Logs a launch of communication. `comm` holds its stream, device and end vertex. From `kind` on,
 * it describes the first operation. */
void ph_trace_communicated(struct ph_log_comm comm);
#endif
