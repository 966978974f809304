/* trace/trace_log.h - what the core and the API files tell the trace's log (trace/trace_log.c).
 *
 * Rule: nobody calls these but behind PH_TRACE or PH_TRACE_END, which are one predictable branch
 * when nothing is traced. */
#ifndef PH_TRACELOG_H
#define PH_TRACELOG_H
#include "base/core.h"

/* this process is traced, and inside the steps that were asked for */
extern bool ph_tracing;
extern _Thread_local int ph_trace_depth; /* calls of this thread that have begun and not ended */
/* modelled cost of this thread's last call: set by the host clock */
extern _Thread_local uint64_t ph_call_cost_ns;
#define PH_TRACE(call) ((void)(__builtin_expect(ph_tracing, 0) && (call, 0)))
#define PH_TRACE_END() ((void)(__builtin_expect(ph_trace_depth, 0) && (ph_trace_call_end(), 0)))

/* once the page is made; reads PHANTORA_TRACE_RANKS and _STEPS */
void ph_trace_start(const char *page_name);
void ph_trace_forget(void); /* in a forked child */

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
/* Begins the call that puts the work of `signature` on a stream; the thread's next ph_run is that
 * work. */
void ph_trace_launch(const struct ph_pack *signature);
/* The thread's next ph_run is the work of `signature`, within the call that launches a graph. */
void ph_trace_replayed(const struct ph_pack *signature, uint32_t registers, uint32_t static_shared);
/* the call that usually launches such work */
const char *ph_trace_call_of(const struct ph_pack *signature);
/* In ph_run: the stream's head ends with the work. With ph_lock held. */
void ph_trace_run_locked(const struct ph_stream *stream, uint64_t duration_ns, uint64_t drag_ns,
                         uint32_t source);

/* an operation joins a group: its launch is described by the operator around it */
void ph_trace_queued(void);
/* `comm`: of the launch's first operation, from `kind` on */
void ph_trace_communicated(const struct ph_stream *stream, uint64_t node, struct ph_log_comm comm);

/* ---- time/host_clock.c: the host clock as it would be now, without moving it ---- */
/* returns the thread's CPU time, for ph_clock_excuse; 0: this time is ours */
uint64_t ph_clock_peek(uint64_t *node, int64_t *offset);
/* the CPU time since then was not the job's */
void ph_clock_excuse(uint64_t cpu_ns);
#endif
