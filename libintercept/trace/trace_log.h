/* trace/trace_log.h - the log that a rank writes for `--trace`.
 *
 * Why it exists: everything from the host clock to NCCL reports here, so the log lies below all of
 * them. It knows nothing of streams or expressions: who reports says what is logged. The one thing
 * that it asks for, the host clock, it is given when it starts.
 *
 * Rule: nobody calls these but behind PH_TRACE or PH_TRACE_END, which are one predictable branch
 * when nothing is traced. */
#ifndef PH_TRACELOG_H
#define PH_TRACELOG_H
#include "base/msgpack.h"
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stdint.h>

/* this process is traced, and inside the steps that were asked for */
extern bool ph_tracing;
extern _Thread_local int ph_trace_depth; /* calls of this thread that have begun and not ended */
/* modelled cost of this thread's last call: set by the host clock */
extern _Thread_local uint64_t ph_call_cost_ns;
#define PH_TRACE(call) ((void)(__builtin_expect(ph_tracing, 0) && (call, 0)))
#define PH_TRACE_END() ((void)(__builtin_expect(ph_trace_depth, 0) && (ph_trace_call_end(), 0)))

/* ---- the host clock ---- */
struct ph_trace_clock {
    struct ph_moment (*now)(void);
    /* The clock as it would be now, without moving it. Returns the thread's CPU time, for
     * `excuse`; 0: this time is ours. */
    uint64_t (*peek)(struct ph_moment *moment);
    void (*excuse)(uint64_t cpu_ns); /* the CPU time since then was not the job's */
};
/* Once the page is made. Reads PHANTORA_TRACE_RANKS and _STEPS. */
void ph_trace_start(const char *page_name, const struct ph_trace_clock *clock);

/* ---- host calls: after the host clock has taken the call's cost. Not under ph_lock. ---- */
/* what the job calls: the name of the thread's next call, instead of the usual one */
void ph_trace_api(const char *name);
void ph_trace_call(const char *name); /* a call that took its cost and nothing else */
/* one that may wait; calls within it are its own business */
void ph_trace_call_begin(const char *name);
void ph_trace_call_end(void);

/* ---- GPU work ---- */
/* of the kernel that the thread's next launch launches */
void ph_trace_code(uint32_t registers, uint32_t static_shared);
/* Begins the call that puts the work of `signature`, packed, on a stream; the thread's next work is
 * that. */
void ph_trace_launch(const char *call, const struct ph_pack *signature);
/* The thread's next work is that of `signature`, within the call that launches a graph. */
void ph_trace_replayed(const struct ph_pack *signature, uint32_t registers, uint32_t static_shared);
enum { PH_TRACE_LEGACY_STREAM = 7 }; /* CUPTI's number of it */
struct ph_trace_work {
    uint32_t stream, source;
    int device;
    uint64_t duration_ns, contention_ns;
};
/* Work has been put on a stream, which ends at `head` then: `head_bytes` of struct ph_term. With
 * ph_lock held. */
void ph_trace_work_locked(const struct ph_trace_work *work, const void *head, size_t head_bytes);

/* an operation joins a group: its launch is described by the operator around it */
void ph_trace_queued(void);
/* A launch of communication. `comm`: its stream, device and end, and of its first operation from
 * `kind` on. */
void ph_trace_communicated(struct ph_log_comm comm);
#endif
