/* time/host_clock.h - the rank's host time, and how a process joins the run. */
#ifndef PH_HOST_CLOCK_H
#define PH_HOST_CLOCK_H
#include "base/host_calls.h"
#include "link/connection.h"
#include "time/expression.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Guards streams, events, expressions and the host clock. It is never held while waiting for the
 * hub. */
extern pthread_mutex_t ph_lock;

/* ---- for every layer: these take ph_lock themselves ---- */
/* Called when the process starts to use CUDA: joins the run and starts the clock. Idempotent and
 * cheap. */
void ph_touch(void);
bool ph_touched(void);
int64_t ph_touched_at(void); /* on the monotonic clock, ns */
/* The exact clock, which does not move by being read; asks the hub if other ranks decide it. */
uint64_t ph_clock_look(void);
/* What the job is shown of CLOCK_REALTIME or CLOCK_MONOTONIC at simulated time 0; ns. The first one
 * is equal in all ranks, the second one follows on what the process saw before it used CUDA. */
int64_t phantora_touch_clock(int clock);
/* advances the host chain by the caller's CPU time, and returns the clock */
uint64_t ph_now(void);
/* Called on the way into a call. Adds the job's time since the last call, and the cost of this
 * call. */
void ph_host_call(enum ph_call call);
/* Between pause and resume, this thread's CPU time belongs to the interceptor, not to the job. */
void ph_host_pause(void);
void ph_host_resume(void);
/* adds `cost_ns` to the cost of this thread's current call */
void ph_host_cost(uint64_t cost_ns);
/* Moves the clock although no CPU time passes, whatever the mode. */
void ph_host_pass(uint64_t ns);
/* The process becomes rank `rank` of a communicator of `ranks`. */
void ph_host_joins(uint64_t rank, uint64_t ranks);
/* Called on the way out of a call: the interceptor's own time is not the job's. Needs no lock. */
void ph_leave(void);

/* ---- requests: with ph_lock held ---- */
/* Begins the body of a request with its common fields: the request number, the clock, and the
 * definitions that the message carries. Returns the number. */
uint64_t ph_request_begin_locked(struct ph_pack *body);
/* Sends the request and frees its body. Releases ph_lock until the answer arrives. The rank counts
 * as blocked from then on; the caller ends that state. False when the time ran out; then there is
 * no reply to free. timeout_ms < 0 waits for ever. */
bool ph_request_locked(enum ph_message type, uint64_t req, struct ph_pack *body, uint32_t fields,
                       struct ph_reply *reply, int timeout_ms);

/* ---- within time/: ph_lock is held ---- */
extern struct ph_host {
    uint64_t vertex, time;             /* the anchor; if `open`, `time` is a lower bound */
    int64_t offset;                    /* host time since the anchor */
    uint64_t ahead;                    /* known distance of the clock beyond time + offset */
    uint64_t known_vertex, known_time; /* the last anchor that the hub answered */
    /* The host waits in a launch for a time that only the hub knows (time/launch_queue.c). Its
     * clock is the time of `held`, plus the host time since `offset` was `held_at`. When `held` has
     * no terms, the clock is the anchor plus `offset`. */
    bool open;
    struct ph_expr held;
    int64_t held_at, mark_at, mark;
    /* reached: queue slots of mark_stream that end before the host goes on. shown: vertex that
     * names `held` in the trace; 0: none yet. */
    uint64_t mark_stream, reached, shown;
} ph_host;
uint64_t ph_clock(void); /* exact, or a lower bound while ph_host.open */
void ph_clock_publish(void);
/* advances the clock by the job's time since the caller's last call, and by the cost of this call
 */
void ph_clock_advance(enum ph_call call);
/* Called after a thread of the chain has polled and got "not ready". Takes ph_lock itself. */
void ph_clock_poll_failed(void);
/* The clock has not moved for half a second of real time, and the host is not waiting for the hub.
 */
bool ph_clock_stands_still(void);
/* Host time comes from a record, or is not counted. So the job's view must not depend on real time.
 */
bool ph_clock_repeats(void);
/* false for a thread that only makes queries, such as NCCL's watchdog */
bool ph_in_chain(void);
#endif
