/* time/turns.c - what a rank does to files waits for its turn.
 *
 * Why it exists: ranks run in real time, in any order. Simulated time orders what they tell each
 * other, but not what they do to files. A rank that deletes a checkpoint may be later than one that
 * has not opened it yet, and ahead of it in real time. So it waits until no rank can act earlier.
 * The hub knows when that is (docs/wire-protocol.md, TURN).
 *
 * What happened since this process last communicated concerns only itself: nobody has been told. So
 * the many short-lived files of a compiler need no turn. Nor does a run that does not repeat. */
#include "time/turns.h"
#include "link/connection.h"
#include "time/expression.h"
#include "time/host_clock.h"
#include "time/launch_queue.h"
#include "time/timeline.h"
#include <stdatomic.h>
#include <time.h>

static _Atomic int64_t communicated = -1; /* when it did last, by CLOCK_REALTIME; -1: never */
static uint64_t vertex, clock_ns;         /* of the last turn; guarded by ph_lock */

void ph_turn_communicates(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    atomic_store_explicit(&communicated, now.tv_sec * 1000000000ll + now.tv_nsec,
                          memory_order_relaxed);
}

bool ph_turn_known(int64_t real_ns)
{
    return real_ns <= atomic_load_explicit(&communicated, memory_order_relaxed);
}

static void wait_locked(void)
{
    struct ph_pack body = {0};
    struct ph_expr host = {.count = 1};
    struct ph_reply reply;
    ph_host_moment(&host.term[0].vertex, &host.term[0].lag);
    uint64_t req = ph_request_begin_locked(&body);
    ph_expr_pack(&body, &host);
    ph_request_locked(PH_MESSAGE_TURN, req, &body, 4, &reply, -1);
    ph_reply_free(&reply);
    atomic_store(&ph_stats()->blocked, 0);
}

void ph_turn_wait(void)
{
    if (!ph_touched() || !ph_in_chain() || !ph_clock_repeats()) return;
    ph_host_pause();
    pthread_mutex_lock(&ph_lock);
    uint64_t at_vertex = ph_host.vertex, at_ns = ph_clock();
    if (ph_host.open || at_vertex != vertex || at_ns != clock_ns) {
        wait_locked();
        vertex = at_vertex;
        clock_ns = at_ns;
    }
    pthread_mutex_unlock(&ph_lock);
    ph_host_resume();
}
