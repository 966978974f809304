/* time/launch_queue.c - the driver's launch queue, which limits how far the host runs ahead of a
 * stream, and the host clock while the host waits in it.
 *
 * Why it exists: a launch returns once at most N queue slots of its stream, its own included, are
 * unfinished. Until then the host waits inside the launch. This wait decides how long the issue of
 * a step takes, and what the caching allocator finds finished. Kernels, fills and copies on the
 * device take queue slots of their own stream. Copies to and from the host, event records and
 * waits take none (docs/host-time.md has the evidence).
 *
 * The end of such an operation may depend on other ranks. Asking the hub at every launch would
 * take thousands of messages per step. So the wait is deferred: the host's clock becomes an
 * expression, `held`, and ph_clock becomes a lower bound of it (`open`). Code that needs the exact
 * clock asks the hub, as for any other host wait. `mark` answers most questions about later work
 * of the same stream without the hub.
 *
 * Rule: ph_lock is held. */
#include "time/launch_queue.h"
#include "base/device.h"
#include "base/log.h"
#include "time/host_clock.h"
#include "time/timeline.h"
#include <stdlib.h>
#include <string.h>

struct queued_call { /* the work of one call */
    /* first: queue slots issued to the stream before this call; lowest: the lowest vertex of
     * `expr`, the origin apart */
    uint64_t first, lowest;
    uint32_t count, ahead;
    int64_t duration, contention;
    int64_t position;    /* the stream position after it */
    struct ph_expr expr; /* the end of the work */
};

struct ph_queue {
    uint64_t issued; /* queue slots */
    /* calls; those from `oldest` up to, not including, `newest` are kept */
    uint64_t oldest, newest;
    uint64_t room;
    struct queued_call work[];
};

static struct queued_call *at(struct ph_queue *queue, uint64_t call)
{
    return &queue->work[call % queue->room];
}

/* ---- the host's expression ---- */
static int64_t passed_since(int64_t then) { return ph_host.offset - then; }

void ph_host_anchor(uint64_t vertex, uint64_t time)
{
    ph_host = (struct ph_host){
        .vertex = vertex, .time = time, .known_vertex = vertex, .known_time = time};
}

void ph_host_reach(uint64_t time)
{
    if (ph_host.open) {
        ph_host_anchor(ph_host.known_vertex, ph_host.known_time);
        ph_host.offset = (int64_t)(time - ph_host.time);
    } else if (time > ph_clock()) {
        ph_host.offset += (int64_t)(time - ph_clock());
    }
}

/* Adds the host's clock to `expr`, plus `latency`, as terms. */
static void add_expression(struct ph_expr *expr, int64_t latency)
{
    int64_t passed = passed_since(ph_host.held_at);
    if (!ph_host.held.count)
        ph_expr_add(expr,
                    (struct ph_term){.vertex = ph_host.vertex, .lag = ph_host.offset + latency});
    for (int i = 0; i < ph_host.held.count; i++) {
        struct ph_term term = ph_host.held.term[i];
        term.lag += passed + latency;
        ph_expr_add(expr, term);
    }
}

static void name_host(void)
{
    struct ph_expr now = {0};
    uint64_t clock = ph_clock();
    add_expression(&now, 0);
    int64_t mark = ph_host.mark + passed_since(ph_host.mark_at);
    ph_host.time = ph_expr_lower(&now);
    ph_host.vertex = ph_expr_name(&now);
    ph_host.offset = ph_host.mark_at = ph_host.held_at = 0;
    ph_host.held.count = 0;
    ph_host.shown = 0;
    ph_host.mark = mark;
    ph_host.ahead = clock > ph_host.time ? clock - ph_host.time : 0;
}

void ph_expr_add_host(struct ph_expr *expr, int64_t latency)
{
    /* keeps later expressions short: they get one term instead of many */
    if (ph_host.held.count > 1) name_host();
    add_expression(expr, latency);
}

/* A trace needs one vertex for every moment. Naming a copy leaves the host's own expression as it
 * is. */
void ph_host_moment(uint64_t *vertex, int64_t *offset)
{
    *vertex = ph_host.vertex;
    *offset = ph_host.offset;
    if (!ph_host.held.count) return;
    if (!ph_host.shown) {
        struct ph_expr copy = ph_host.held;
        ph_host.shown = ph_expr_name(&copy);
    }
    *vertex = ph_host.shown;
    *offset = passed_since(ph_host.held_at);
}

uint64_t ph_host_oldest(uint64_t otherwise)
{
    uint64_t oldest = ph_expr_oldest(&ph_host.held, otherwise);
    if (ph_host.known_vertex < oldest) oldest = ph_host.known_vertex;
    return ph_host.vertex < oldest ? ph_host.vertex : oldest;
}

/* Whether a stream at `position` ends no earlier than the host's clock plus `latency`. The
 * difference of two positions is a lower bound of the time between the two ends. A stream beyond
 * position `mark` ends no earlier than the host's clock was when `offset` was `mark_at`. */
static bool beyond_host(uint64_t stream, int64_t position, int64_t latency)
{
    return ph_host.open && stream == ph_host.mark_stream &&
           position > ph_host.mark + passed_since(ph_host.mark_at) + latency;
}

int ph_host_compare(const struct ph_stream_position *position, int64_t margin)
{
    if (!ph_host.open || position->stream != ph_host.mark_stream) return -1;
    if (position->queue_slots < ph_host.reached)
        return 1; /* an operation that was issued later has ended */
    return beyond_host(position->stream, position->position, margin) ? 0 : -1;
}

/* Holds the host until `expr` is reached, unless the host's clock is beyond that. `expr` is the end
 * of queue slot `number` (from 1) of the stream. */
static void hold(const struct ph_stream *stream, const struct ph_expr *expr, int64_t position,
                 uint64_t number)
{
    uint64_t now = ph_clock(), known;
    if (ph_expr_upper(expr) <= now) return;
    known = ph_host.open ? PH_UNKNOWN : ph_expr_exact(expr, now);
    if (known != PH_UNKNOWN) {
        ph_host_reach(known);
        ph_clock_publish();
        return;
    }
    int64_t mark = ph_host.mark + passed_since(ph_host.mark_at);
    bool same = ph_host.open && stream->id == ph_host.mark_stream;
    struct ph_expr later = *expr;
    /* the host's clock may be later than `expr`, so the wait ends at the later of the two */
    if (same ? position < mark : ph_host.open || ph_expr_lower(expr) < now) {
        add_expression(&later, 0);
        /* the launch itself will lower the mark */
        position = !same ? INT64_MAX / 2 : mark > position ? mark : position;
    }
    ph_host.held = later;
    ph_host.open = true;
    ph_host.shown = 0;
    ph_host.held_at = ph_host.mark_at = ph_host.offset;
    ph_host.mark_stream = stream->id;
    ph_host.mark = position;
    ph_host.reached = number;
    uint64_t lower = ph_expr_lower(&later);
    if (lower > now) ph_host.ahead += lower - now;
    ph_clock_publish();
}

/* ---- the queue of a stream ---- */
static uint32_t count_of(uint32_t queue_slots)
{
    uint32_t count = queue_slots & 0xff;
    return count < ph_spec()->launch_queue ? count : (uint32_t)ph_spec()->launch_queue;
}

void ph_queue_wait_locked(struct ph_stream *stream, uint32_t queue_slots)
{
    struct ph_queue *queue = stream->queue;
    uint32_t count = count_of(queue_slots);
    if (!queue || !count || queue->issued + count <= ph_spec()->launch_queue) return;
    /* the queue slot that must have ended, from 1 */
    uint64_t number = queue->issued + count - ph_spec()->launch_queue;
    while (queue->oldest < queue->newest &&
           at(queue, queue->oldest)->first + at(queue, queue->oldest)->count < number)
        queue->oldest++;
    const struct queued_call *work = at(queue, queue->oldest);
    /* the slot is known to have ended */
    if (queue->oldest == queue->newest || work->first >= number) return;
    struct ph_expr expr = work->expr;
    int64_t position = work->position;
    if (number <= work->first + work->ahead) {
        for (int i = 0; i < expr.count && work->duration; i++) {
            struct ph_term *term = &expr.term[i];
            term->work -= work->duration, term->contention -= work->contention;
            term->run = ph_run_before(term->run);
        }
        position -= work->duration;
    }
    hold(stream, &expr, position, number);
}

void ph_queue_free(struct ph_stream *stream)
{
    free(stream->queue);
    stream->queue = NULL;
}

void ph_queue_push_locked(struct ph_stream *stream, uint32_t queue_slots, uint64_t duration_ns,
                          uint64_t contention_ns)
{
    uint64_t limit = ph_spec()->launch_queue;
    uint32_t count = count_of(queue_slots), ahead = queue_slots >> 8 & 0xff;
    if (!count) return;
    if (!stream->queue) {
        stream->queue =
            calloc(1, sizeof *stream->queue + (limit + 1) * sizeof *stream->queue->work);
        if (!stream->queue) ph_die("out of host memory");
        stream->queue->room = limit + 1;
    }
    struct ph_queue *queue = stream->queue;
    if (queue->newest - queue->oldest == queue->room) queue->oldest++;
    struct queued_call *work = at(queue, queue->newest++);
    work->first = queue->issued;
    work->count = count;
    work->ahead = ahead < count ? ahead : count - 1;
    work->duration = (int64_t)duration_ns;
    work->contention = (int64_t)contention_ns;
    work->position = stream->position;
    work->expr.count = stream->expr.count;
    memcpy(work->expr.term, stream->expr.term,
           (size_t)stream->expr.count * sizeof *stream->expr.term);
    work->lowest = UINT64_MAX;
    for (int i = 0; i < work->expr.count; i++) /* the hub never forgets the origin */
        if (work->expr.term[i].vertex && work->expr.term[i].vertex < work->lowest)
            work->lowest = work->expr.term[i].vertex;
    queue->issued += count;
}

void ph_queue_add_host(struct ph_stream *stream, int64_t latency)
{
    if (beyond_host(stream->id, stream->position, latency)) return;
    /* both expressions mostly name the same vertices */
    if (ph_host.open && stream->id == ph_host.mark_stream)
        add_expression(&stream->expr, latency);
    else
        ph_expr_add_host(&stream->expr, latency);
}

void ph_queue_moved(struct ph_stream *stream, uint64_t duration_ns, uint64_t gap_ns)
{
    int64_t gap = (int64_t)gap_ns,
            mark = stream->position + gap - (int64_t)ph_spec()->launch_latency_ns;
    stream->position += gap + (int64_t)duration_ns;
    if (!ph_host.open || stream->id != ph_host.mark_stream ||
        mark >= ph_host.mark + passed_since(ph_host.mark_at))
        return;
    ph_host.mark = mark; /* this work starts no earlier than this launch */
    ph_host.mark_at = ph_host.offset;
}

struct ph_stream_position ph_queue_position(const struct ph_stream *stream)
{
    if (stream->queue && stream->position)
        return (struct ph_stream_position){stream->id, stream->position, stream->queue->issued};
    return stream->after;
}

void ph_queue_after(struct ph_stream *stream, const struct ph_stream_position *position)
{
    if (!position->stream || position->stream == stream->id) return;
    if (stream->after.stream == position->stream && stream->after.position >= position->position)
        return;
    stream->after = *position;
    /* the stream ends after that position, by an unknown number of slots */
    stream->after.queue_slots = UINT64_MAX;
}

uint64_t ph_queue_oldest(struct ph_stream *stream, uint64_t now, uint64_t oldest)
{
    struct ph_queue *queue = stream->queue;
    if (!queue) return oldest;
    while (queue->oldest < queue->newest && ph_expr_upper(&at(queue, queue->oldest)->expr) <= now)
        queue->oldest++;
    for (uint64_t call = queue->oldest; call < queue->newest; call++)
        if (at(queue, call)->lowest < oldest) oldest = at(queue, call)->lowest;
    return oldest;
}
