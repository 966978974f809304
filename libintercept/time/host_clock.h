/* time/host_clock.h - the rank's host time, and how a process joins the run. */
#ifndef PH_HOST_CLOCK_H
#define PH_HOST_CLOCK_H
#include "base/host_calls.h"
#include "time/expression.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Guards streams, events, expressions and the host clock. It is never held while waiting for the
 * hub. */
extern pthread_mutex_t ph_lock;

/* ---- for every layer: these take ph_lock themselves ---- */
/* the process starts to use CUDA: joins the hub, starts its clock; idempotent, cheap */
void ph_touch(void);
bool ph_touched(void);
uint64_t ph_now(void); /* advances the host chain by the caller's CPU time and returns it */
/* on the way into a call: what passed since the last one, and what the call costs */
void ph_host_call(enum ph_call call);
/* from here on this thread's CPU time is ours, not the job's */
void ph_host_pause(void);
void ph_host_resume(void);
/* the call that this thread is in costs so much more */
void ph_host_cost(uint64_t cost_ns);
/* on the way out of a call: what the interceptor spent is not the job's; needs no lock */
void ph_leave(void);

/* ---- within time/: ph_lock is held ---- */
extern struct ph_host {
    uint64_t vertex, time;             /* the anchor; if `open`, time is a lower bound */
    int64_t offset;                    /* what passed since */
    uint64_t ahead;                    /* how far the clock is known to be beyond that */
    uint64_t known_vertex, known_time; /* the last anchor that the hub has told */
    /* time/launch_queue.c: the host waits in a launch for what the hub alone knows. It is where
     * `held` is reached, and what passed since offset was held_at; with no terms in it, at the
     * anchor. */
    bool open;
    struct ph_expr held;
    int64_t held_at, mark_at, mark;
    /* reached: works of mark_stream that ended before; shown: vertex of `held` for the trace */
    uint64_t mark_stream, reached, shown;
} ph_host;
uint64_t ph_clock(void); /* a lower bound while ph_host.open; else exact */
void ph_clock_publish(void);
/* by the job's time since the caller's last call, and the call's cost */
void ph_clock_advance(enum ph_call call);
/* a member of the chain has asked and was told "not yet"; takes ph_lock itself */
void ph_clock_poll_failed(void);
/* for half a second of real time, and not because it waits for the hub */
bool ph_clock_stands_still(void);
/* host time comes from a record: what the job sees must not depend on real time */
bool ph_clock_repeats(void);
bool ph_in_chain(void); /* false for a thread that has only ever asked (NCCL's watchdog) */
#endif
