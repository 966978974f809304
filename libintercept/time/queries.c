/* time/queries.c - the job's queries about its GPU that do not wait: whether events and streams
 * are complete, and the times between events.
 *
 * Why it exists: the caching allocator acts on the answers, so they are decided in simulated time,
 * at the host clock of the caller. Bounds and the order of work decide most of them here. The hub
 * decides the rest (docs/wire-protocol.md, QUERY). */
#include "base/device.h"
#include "base/log.h"
#include "link/connection.h"
#include "time/expression.h"
#include "time/host_clock.h"
#include "time/launch_queue.h"
#include "time/time_outs.h"
#include "time/timeline.h"
#include "time/untold.h"
#include "time/watchdog.h"
#include "trace/trace_log.h"

enum { OTHERS = 12, WANTED = 3 * PH_EXPR_MAX + OTHERS };
_Static_assert(WANTED <= 64, "the final ones are bits of one word");

/* Whether `expr` is reached at `host`, the host's clock, by the floors and ceilings that the hub
 * has told; -1: they do not decide it. The hub would give the same answer. */
static int told(const struct ph_expr *expr, const struct ph_expr *host)
{
    if (ph_expr_ceiling(expr) <= ph_clock()) return 1;
    uint64_t floor = ph_expr_floor(expr);
    if (floor <= ph_clock()) return -1;
    return !ph_host.open || floor > ph_expr_ceiling(host) ? 0 : -1;
}

static uint32_t add_vertices(uint64_t wanted[WANTED], uint32_t count, const struct ph_expr *expr)
{
    for (int i = 0; expr && i < expr->count; i++) wanted[count++] = expr->term[i].vertex;
    return count;
}

static uint32_t add_untold(uint64_t wanted[WANTED], uint32_t count, uint64_t now)
{
    uint64_t untold[OTHERS];
    uint32_t others = ph_untold_oldest(untold, OTHERS, now), before = count;
    for (uint32_t i = 0; i < others; i++) {
        bool there = false;
        for (uint32_t j = 0; j < before && !there; j++) there = wanted[j] == untold[i];
        if (!there) wanted[count++] = untold[i];
    }
    return count;
}

/* Asks the hub, which also tells what it knows of the vertices of both expressions, of those that
 * the host's clock is a name for, and of the oldest vertices whose times it has not told yet. */
static bool ask_hub(const struct ph_expr *expr, const struct ph_expr *host, uint64_t now)
{
    struct ph_pack body = {0};
    struct ph_expr asked = *expr; /* the event may be recorded again meanwhile */
    uint64_t wanted[WANTED];
    uint32_t wants = add_vertices(wanted, add_vertices(wanted, 0, &asked), host);
    if (host->count == 1) wants = add_vertices(wanted, wants, ph_named(host->term[0].vertex));
    if (ph_in_chain()) wants = add_untold(wanted, wants, now);
    uint64_t req = ph_request_begin_locked(&body);
    ph_expr_pack(&body, &asked);
    ph_expr_pack(&body, host);
    ph_pack_array(&body, wants);
    for (uint32_t i = 0; i < wants; i++) ph_pack_uint(&body, wanted[i]);
    struct ph_reply reply;
    ph_request_locked(PH_MESSAGE_QUERY, req, &body, 6, &reply, -1);
    bool ready = ph_read_int(&reply) != 0;
    uint64_t floor = (uint64_t)ph_read_int(&reply), floors[WANTED] = {0}, final = 0;
    uint32_t count = ph_read_array(&reply);
    for (uint32_t i = 0; i < count; i++) {
        int64_t time = ph_read_int(&reply);
        if (i < wants) floors[i] = (uint64_t)time;
    }
    for (uint32_t i = 0, finals = ph_read_array(&reply); i < finals; i++)
        final |= 1ull << (ph_read_int(&reply) & 63);
    uint64_t least[WANTED] = {0};
    for (uint32_t i = 0, lengths = ph_read_array(&reply); i < lengths; i++) {
        int64_t ns = ph_read_int(&reply);
        if (i < wants) least[i] = (uint64_t)ns;
    }
    ph_reply_free(&reply);
    /* a thread outside the chain leaves the chain's state as it is, and what the chain knows: which
     * of them polls how often is a matter of real time */
    if (!ph_in_chain()) return ready;
    if (!ready) ph_expr_not_before(&asked, now, floor);
    if (ready && !ph_host.open) ph_expr_reached(&asked, now);
    for (uint32_t i = 0; i < wants && i < count; i++) {
        ph_untold_least(wanted[i], least[i]);
        ph_vertex_not_before(wanted[i], floors[i], final >> i & 1);
    }
    atomic_store(&ph_stats()->blocked, 0);
    return ready;
}

/* Whether `expr` has been reached at the host clock. `position` is its stream position; `margin`:
 * as for ph_host_compare. Decided here if possible, else by the hub. */
static bool reached_locked(const struct ph_expr *expr, const struct ph_stream_position *position,
                           int64_t margin)
{
    uint64_t now = ph_clock();
    if (ph_expr_upper(expr) <= now) return true;
    int decided = ph_host.open ? ph_host_compare(position, margin) : -1;
    if (decided >= 0) return decided;
    /* What happens from here on must not depend on who decides. This may name the host's clock. */
    struct ph_expr host = {0};
    ph_expr_add_host(&host, 0);
    if (ph_in_chain()) decided = told(expr, &host);
    if (decided < 0) return ask_hub(expr, &host, now);
    if (decided && !ph_host.open) ph_expr_reached(expr, now);
    return decided;
}

/* Answers a query of the job, and charges the host for it. In a run that repeats, a query of an
 * event that is complete when the call begins is free. The reason: PyTorch's host allocator queries
 * the events of freed blocks from whichever thread pins memory next, and which thread that is
 * depends on real time. A query that finds its event not complete comes from the same thread in
 * every run. */
static bool ask(const struct ph_expr *expr, const struct ph_stream_position *position,
                const char *call)
{
    pthread_mutex_lock(&ph_lock);
    bool over = ph_clock_repeats() && ph_in_chain() &&
                reached_locked(expr, position, (int64_t)ph_spec()->launch_latency_ns);
    bool ready = over;
    if (!over) {
        ph_clock_advance(PH_CALL_QUERY);
        ready = reached_locked(expr, position, 0);
    }
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
    if (!over && call) PH_TRACE(ph_trace_call(call));
    return ready;
}

/* The same for a thread that only polls (NCCL's watchdog). Its queries record no bounds. They must
 * not wait, so the hub answers with what it knows so far, and how far simulated time is known.
 * While the host stands still, in a socket or a join, its clock says nothing. Then an event whose
 * time is known counts as reached. */
static bool observe(const struct ph_expr *expr, const struct ph_stream_position *position,
                    _Atomic uint64_t *put_off_ns)
{
    struct ph_pack body = {0};
    uint64_t req = ph_request_id();
    enum ph_look look = ph_watchdog_looks(put_off_ns);
    if (look == PH_LOOK_LATER || look == PH_LOOK_EXACTLY) {
        bool over = look == PH_LOOK_EXACTLY && ask(expr, position, NULL);
        ph_watchdog_looked(over, look == PH_LOOK_EXACTLY ? atomic_load(&ph_stats()->clock_ns) : 0);
        return over;
    }
    pthread_mutex_lock(&ph_lock);
    uint64_t upper = ph_expr_upper(expr), now = ph_clock(), lbts = 0;
    bool known = upper != PH_UNKNOWN, asked = !known || look == PH_LOOK_IF_LONG;
    if (asked) {
        ph_pack_uint(&body, req);
        ph_pack_uint(&body, now);
        ph_extra_pack(&body, false, 0);
        ph_expr_pack(&body, expr);
        ph_pack_array(&body, 0);
        ph_pack_array(&body, 0);
        ph_send(PH_MESSAGE_QUERY, &body, 6);
    }
    pthread_mutex_unlock(&ph_lock);
    if (asked) {
        struct ph_reply reply;
        ph_pack_free(&body);
        ph_wait(req, &reply, -1);
        upper = (uint64_t)ph_read_int(&reply);
        known = upper-- != 0;
        lbts = (uint64_t)ph_read_int(&reply);
        ph_reply_free(&reply);
    }
    if (look == PH_LOOK_IF_LONG && !ph_watchdog_wait_is_long(now, lbts)) {
        ph_watchdog_looked(false, 0);
        return false;
    }
    bool over = known && (upper <= now || ph_clock_stands_still() || ph_job_hangs());
    uint64_t passed = known && now > lbts ? now : lbts;
    ph_watchdog_looked(over, known && upper < passed ? upper : passed);
    return over;
}

static bool reached(const struct ph_expr *expr, const struct ph_stream_position *position,
                    _Atomic uint64_t *put_off_ns, const char *call)
{
    if (!ph_in_chain()) return observe(expr, position, put_off_ns);
    bool ready = ask(expr, position, call);
    if (!ready) ph_clock_poll_failed();
    return ready;
}

bool ph_event_ready(struct ph_event *event)
{
    return !event->recorded ||
           reached(&event->expr, &event->position, &event->put_off_ns, "cudaEventQuery");
}

bool ph_stream_ready(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    ph_stream_order_locked(stream);
    struct ph_expr expr = stream->expr;
    struct ph_stream_position position = ph_queue_position(stream);
    pthread_mutex_unlock(&ph_lock);
    return reached(&expr, &position, &stream->put_off_ns, "cudaStreamQuery");
}

uint64_t ph_event_moment(const struct ph_event *event)
{
    enum { PATIENCE_MS = 20000 };
    pthread_mutex_lock(&ph_lock);
    uint64_t time = ph_expr_exact(&event->expr, 0), lower = ph_expr_lower(&event->expr);
    if (time != PH_UNKNOWN) {
        pthread_mutex_unlock(&ph_lock);
        return time;
    }
    struct ph_pack body = {0};
    uint64_t req = ph_request_begin_locked(&body);
    ph_pack_array(&body, 1);
    ph_expr_pack(&body, &event->expr);
    struct ph_reply reply;
    if (ph_request_locked(PH_MESSAGE_TIMES, req, &body, 4, &reply, PATIENCE_MS)) {
        ph_read_array(&reply);
        time = (uint64_t)ph_read_int(&reply);
        ph_reply_free(&reply);
    } else { /* the rank that decides the time may be waiting for this one */
        ph_warn("an event that another process has opened waits for communication that did not "
                "come within %d s; that process sees it as early "
                "as it could have been",
                PATIENCE_MS / 1000);
        time = lower;
    }
    atomic_store(&ph_stats()->blocked, 0);
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
    return time;
}

bool ph_event_elapsed(const struct ph_event *start, const struct ph_event *end, float *milliseconds)
{
    pthread_mutex_lock(&ph_lock);
    uint64_t from = ph_expr_exact(&start->expr, 0), to = ph_expr_exact(&end->expr, 0);
    if (from == PH_UNKNOWN || to == PH_UNKNOWN) {
        struct ph_pack body = {0};
        uint64_t req = ph_request_begin_locked(&body);
        ph_pack_array(&body, 2);
        ph_expr_pack(&body, &start->expr);
        ph_expr_pack(&body, &end->expr);
        struct ph_reply reply;
        ph_request_locked(PH_MESSAGE_TIMES, req, &body, 4, &reply, -1);
        ph_read_array(&reply);
        from = (uint64_t)ph_read_int(&reply);
        to = (uint64_t)ph_read_int(&reply);
        ph_reply_free(&reply);
        atomic_store(&ph_stats()->blocked, 0);
    }
    if (ph_host.open && (from > ph_clock() || to > ph_clock())) ph_host_settle_locked();
    bool complete = from <= ph_clock() && to <= ph_clock();
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
    *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    return complete;
}
