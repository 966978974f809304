/* time/timeline.c - the rank's part of the event graph: streams and events, and the messages about
 * them.
 *
 * Why it exists: a run of kernels between two points that another rank can observe is an affine
 * max-plus map. It is folded at once, without loss, into the stream's expression
 * (time/expression.c). Only collectives and host synchronisations become messages. */
#include "time/timeline.h"
#include "backend.h"
#include "base/fork.h"
#include "base/log.h"
#include "time/beside.h"
#include "time/gaps.h"
#include "time/gpu_faults.h"
#include "time/power.h"
#include "time/turns.h"
#include "time/untold.h"
#include "time/watchdog.h"
#include "trace/trace_log.h"
#include <stdlib.h>
#include <string.h>

enum {
    STREAM_MAGIC = 0x5048534d,
    EVENT_MAGIC = 0x50484556,
    DEVICES = 8,
    STREAM_NON_BLOCKING = 1,
    FILLS_LEAST_NS = 20000, /* shorter work leaves multiprocessors free */
    MOST_KERNELS = 1024     /* of one stream between cuts */
};
static uint64_t next_stream = 16;
static struct ph_stream *streams;
static struct ph_stream *_Atomic legacy[DEVICES]; /* set under ph_lock */
static struct ph_event *events;
/* the stream of each device whose waits for communication count as exposed */
static struct ph_stream *busiest[DEVICES];

/* The lowest vertex that a profile inside of the job may ask for; UINT64_MAX: there is none. */
static uint64_t profiled_from = UINT64_MAX;
static _Thread_local bool launches_graph;

void ph_graph_launching(bool on) { launches_graph = on; }
bool ph_replaying(void) { return launches_graph; }

static void forget(void)
{
    streams = NULL;
    events = NULL;
    for (int i = 0; i < DEVICES; i++) legacy[i] = NULL;
    memset(busiest, 0, sizeof busiest);
    profiled_from = UINT64_MAX;
    ph_beside_forget();
    ph_gaps_forget();
}

void ph_timeline_start(void) { ph_forget_in_child(forget); }

/* ---- streams ---- */
static struct ph_stream *add_stream_locked(int device, unsigned flags, int priority)
{
    struct ph_stream *stream = calloc(1, sizeof *stream);
    if (!stream) ph_die("out of host memory");
    *stream = (struct ph_stream){.magic = STREAM_MAGIC,
                                 .device = device,
                                 .priority = priority,
                                 .flags = flags,
                                 .id = next_stream++,
                                 .next = streams};
    streams = stream;
    if (ph_backend.device_used) ph_backend.device_used(device);
    return stream;
}

struct ph_stream *ph_stream_create(int device, unsigned flags, int priority)
{
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    struct ph_stream *stream = add_stream_locked(device, flags, priority);
    pthread_mutex_unlock(&ph_lock);
    return stream;
}

bool ph_stream_destroy(struct ph_stream *stream)
{
    bool found = false;
    if (!ph_stream_valid(stream)) return false;
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream **link = &streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            if (busiest[stream->device] == stream) busiest[stream->device] = NULL;
            found = true;
            break;
        }
    pthread_mutex_unlock(&ph_lock);
    if (!found) return false;
    ph_queue_free(stream);
    stream->magic = 0;
    free(stream);
    return true;
}

static struct ph_stream *legacy_locked(int device)
{
    if (!legacy[device]) legacy[device] = add_stream_locked(device, 0, 0);
    return legacy[device];
}

bool ph_stream_is_legacy(const struct ph_stream *stream)
{
    return stream == legacy[stream->device];
}
bool ph_stream_valid(const struct ph_stream *stream)
{
    return stream && stream->magic == STREAM_MAGIC;
}

struct ph_stream *ph_stream_default(void)
{
    struct ph_stream *stream =
        atomic_load_explicit(&legacy[ph_device_current()], memory_order_acquire);
    if (stream) return stream;
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    stream = legacy_locked(ph_device_current());
    pthread_mutex_unlock(&ph_lock);
    return stream;
}

/* The legacy stream and blocking streams wait for each other (CUDA's implicit synchronisation). */
void ph_stream_order_locked(struct ph_stream *stream)
{
    if (stream->flags & STREAM_NON_BLOCKING) return;
    bool is_legacy = stream == legacy[stream->device];
    for (struct ph_stream *other = streams; other; other = other->next)
        if (other != stream && other->device == stream->device && other->used &&
            !(other->flags & STREAM_NON_BLOCKING) && (is_legacy || other == legacy[stream->device]))
            ph_expr_merge(&stream->expr, &other->expr);
}

/* The last vertex that `after` waits for and `before` does not. */
static uint64_t last_added(const struct ph_expr *before, const struct ph_expr *after)
{
    uint64_t last = 0;
    for (int i = 0; i < after->count; i++) {
        bool known = false;
        for (int j = 0; j < before->count && !known; j++)
            known = before->term[j].vertex == after->term[i].vertex;
        if (!known && after->term[i].vertex > last) last = after->term[i].vertex;
    }
    return last;
}

/* The stream that computes waits for communication between these two moments. */
static void stalls_locked(int device, const struct ph_expr *before, const struct ph_expr *after)
{
    ph_extra_stall(device, before, after);
    ph_power_idle_locked(device, ph_gaps_expected_locked(device, last_added(before, after)));
}

/* So that no expression lists the same kernels again and again, nor more than are kept. */
static void cut_locked(struct ph_stream *stream)
{
    stream->kernels = 0;
    stream->last_cut = ph_expr_cut(&stream->expr, stream->last_cut);
}

/* Call it before adding a kernel to the stream's expression: a full expression is cut first. */
static void count_kernel_locked(struct ph_stream *stream)
{
    if (stream->kernels >= MOST_KERNELS) cut_locked(stream);
    stream->kernels++;
}

/* A kernel starts later after the one before it while kernels of two or more other streams wait for
 * events: by 1.4 us on an H100 (bench/gpus/crowd.py). Counted are streams whose last kernel has not
 * begun at the host's clock. In a step that the GPU decides the host is many kernels ahead, so
 * about as many streams wait when this kernel runs. */
static uint64_t gap_locked(const struct ph_stream *stream)
{
    enum { CROWD = 2 };
    const struct ph_device_spec *spec = ph_spec();
    if (launches_graph) return spec->graph_gap_ns;
    uint64_t now = ph_clock();
    int waiting = 0;
    for (const struct ph_stream *other = streams; other && waiting < CROWD; other = other->next)
        waiting += other != stream && other->device == stream->device && other->kernel_begin > now;
    return spec->kernel_gap_ns + (waiting == CROWD ? spec->crowd_gap_ns : 0);
}

static void run_locked(struct ph_stream *stream, uint64_t duration_ns, uint64_t contention_ns)
{
    const struct ph_device_spec *spec = ph_spec();
    uint64_t gap_ns = gap_locked(stream);
    /* before the kernel: the launch queue takes a call's own time off what is pushed after it */
    count_kernel_locked(stream);
    ph_stream_order_locked(stream);
    for (int i = 0; i < stream->expr.count; i++) stream->expr.term[i].lag += (int64_t)gap_ns;
    ph_queue_add_host(stream, (int64_t)spec->launch_latency_ns);
    ph_expr_run(&stream->expr, (int64_t)duration_ns, (int64_t)contention_ns);
    ph_queue_moved(stream, duration_ns, gap_ns);
    stream->used = true;
}

uint32_t ph_stream_trace_number(const struct ph_stream *stream)
{
    return ph_stream_is_legacy(stream) ? PH_TRACE_LEGACY_STREAM : (uint32_t)stream->id;
}

static void trace_work(const struct ph_stream *stream, uint64_t duration_ns, uint64_t contention_ns,
                       uint32_t source)
{
    struct ph_trace_work work = {.stream = ph_stream_trace_number(stream),
                                 .source = source,
                                 .device = stream->device,
                                 .duration_ns = duration_ns,
                                 .contention_ns = contention_ns};
    struct ph_log_term terms[PH_EXPR_MAX];
    for (int i = 0; i < stream->expr.count; i++) {
        const struct ph_term *term = &stream->expr.term[i];
        terms[i] = (struct ph_log_term){term->vertex, term->lag, term->work, term->contention};
    }
    ph_trace_work_locked(&work, terms, (size_t)stream->expr.count * sizeof *terms);
}

/* Two streams that compute share the GPU: a kernel on another stream makes those of the busiest
 * stream take longer in all, by a share of its own time (bench/contention/two_kernels.py). Only the
 * part of it counts for which the busiest stream has work queued ahead of the host. Which kernels
 * it runs beside is not known here, so the cost is added at the end of that queue. If the stream
 * then waits for the kernel, the two did not overlap, and the wait absorbs the cost. Branches of a
 * CUDA graph cost each other nothing, because that was not measured. Copies: ph_run. */
static void share_locked(const struct ph_stream *stream, const struct ph_time *time,
                         uint64_t duration_ns)
{
    struct ph_stream *compute = busiest[stream->device];
    if (launches_graph || duration_ns < FILLS_LEAST_NS || time->class == PH_KERNEL_CLASS_COPY ||
        !compute || compute == stream)
        return;
    uint64_t now = ph_clock(), queued = ph_expr_lower(&compute->expr);
    if (queued <= now) return;
    const struct ph_device_spec *spec = ph_spec();
    uint64_t permille = time->class == PH_KERNEL_CLASS_OPTIMIZER ? spec->other_stream_lists_permille
                                                                 : spec->other_stream_permille;
    uint64_t beside_ns = queued - now < duration_ns ? queued - now : duration_ns;
    uint64_t cost_ns = beside_ns * permille / 1000;
    count_kernel_locked(compute);
    ph_expr_run(&compute->expr, (int64_t)cost_ns, 0);
    compute->position += (int64_t)cost_ns;
}

void ph_run_locked(struct ph_stream *stream, struct ph_time time)
{
    struct ph_clocked clocked = ph_power_run_locked(stream->device, &time);
    uint64_t duration_ns = ph_gpu_fault_slows(stream->device, clocked.duration_ns, ph_clock());
    uint64_t contention_ns = duration_ns * time.contention_permille / 1000;
    if (!launches_graph) ph_queue_wait_locked(stream, time.queue_slots);
    run_locked(stream, duration_ns, contention_ns);
    share_locked(stream, &time, duration_ns);
    if (time.class != PH_KERNEL_CLASS_COPY)
        stream->kernel_begin = ph_expr_lower(&stream->expr) - duration_ns;
    if (!launches_graph) ph_queue_push_locked(stream, time.queue_slots, duration_ns, contention_ns);
    PH_TRACE(trace_work(stream, duration_ns, contention_ns, time.source));
    stream->busy_ns += duration_ns;
    if (!busiest[stream->device] || stream->busy_ns > busiest[stream->device]->busy_ns)
        busiest[stream->device] = stream;
    struct ph_rank_stats *page = ph_stats();
    atomic_fetch_add_explicit(&page->busy_ns[time.source], duration_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->launches[time.source], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->work_ns[PH_SOURCES * time.class + time.source], duration_ns,
                              memory_order_relaxed);
    if (time.elsewhere)
        atomic_fetch_add_explicit(&page->elsewhere_ns, duration_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->cycles, duration_ns * (clocked.clock_khz / 1000) / 1000,
                              memory_order_relaxed);
    if (time.flop)
        atomic_fetch_add_explicit(&page->flop[time.precision], time.flop, memory_order_relaxed);
    if (time.precision == PH_PRECISION_UNCOUNTED)
        atomic_fetch_add_explicit(&page->uncounted_ns, duration_ns, memory_order_relaxed);
    if (clocked.held) atomic_fetch_add_explicit(&page->held_ns, duration_ns, memory_order_relaxed);
}

/* A copy inside the GPU takes all multiprocessors and the memory's whole bandwidth: in real steps,
 * kernels of 5 to 24 us that meet one of 0.1 to 0.4 ms end when it ends. So compute that is queued
 * as far as its begin waits for its end. Compute that ends before it begins may have time left, of
 * which nothing is known here. */
void ph_run(struct ph_stream *stream, struct ph_time time, bool fills)
{
    pthread_mutex_lock(&ph_lock);
    struct ph_stream *compute = busiest[stream->device];
    bool met = fills && time.duration_ns >= FILLS_LEAST_NS && compute && compute != stream &&
               ph_expr_lower(&stream->expr) <= ph_expr_lower(&compute->expr);
    ph_run_locked(stream, time);
    if (met) {
        struct ph_stream_position end = ph_queue_position(stream);
        ph_expr_merge(&compute->expr, &stream->expr);
        ph_queue_after(compute, &end);
    }
    pthread_mutex_unlock(&ph_lock);
}

/* ---- messages ---- */
/* Until when compute is queued on the stream's GPU; 0 if the stream is the one that computes. It is
 * a lower bound, because no more is known here. */
static uint64_t computed_locked(const struct ph_stream *stream)
{
    const struct ph_stream *compute = busiest[stream->device];
    return compute && compute != stream ? ph_expr_lower(&compute->expr) : 0;
}

void ph_links_send(const struct ph_stream *stream, uint64_t bytes)
{
    pthread_mutex_lock(&ph_lock);
    ph_power_sent_locked(stream->device, bytes);
    pthread_mutex_unlock(&ph_lock);
}

uint64_t ph_communicate(struct ph_stream *stream, struct ph_launches *comm, uint64_t what,
                        uint64_t alike, const struct ph_pack *ops, uint32_t count)
{
    struct ph_pack body = {0};
    ph_host_call(PH_CALL_COMM);
    PH_TRACE(ph_trace_call("cuLaunchKernelEx"));
    ph_watchdogs_due(PH_WATCHDOG_NAMED);
    ph_turn_communicates();
    pthread_mutex_lock(&ph_lock);
    if (!launches_graph) ph_queue_wait_locked(stream, 1);
    ph_stream_order_locked(stream);
    ph_expr_prune(&stream->expr, ph_clock());
    ph_queue_add_host(stream, (int64_t)ph_spec()->launch_latency_ns);
    struct ph_expr before = stream->expr;
    bool ordered = alike != 0; /* launches with messages take no turn */
    struct ph_event *last = ordered ? comm->last : NULL;
    if (last) {
        ph_expr_prune(&last->expr, ph_clock());
        ph_expr_merge(&stream->expr, &last->expr);
        ph_queue_after(stream, &last->position);
    }
    uint64_t begin = ph_expr_lower(&stream->expr), computed = computed_locked(stream);
    stream->kernel_begin = begin;
    uint64_t vertex = ph_vertex_new(begin, PH_UNKNOWN);
    ph_untold_launch(vertex, ph_expr_floor(&stream->expr), alike);
    uint64_t waited = ph_gaps_launch_locked(vertex);
    bool beside = false;
    if (computed) {
        ph_beside_computed_locked(stream->device, computed);
        beside =
            ph_beside_expected_locked(&comm->beside, what, stream->device, vertex, begin, computed);
        cut_locked(busiest[stream->device]);
    }
    ph_pack_uint(&body, ph_clock());
    ph_extra_pack(&body, beside, waited);
    ph_pack_uint(&body, comm->number);
    ph_pack_uint(&body, vertex);
    ph_expr_pack(&body, &stream->expr);
    ph_pack_array(&body, count);
    ph_pack_raw(&body, ops->data, ops->length);
    ph_communicated(vertex, stream->last_launch, 1 + comm->number);
    stream->last_launch = vertex;
    ph_send(PH_MESSAGE_OPS, &body,
            /* Under ph_lock, so that messages are sent in the order of their vertices. */
            6);
    stream->expr.count = 1;
    stream->expr.term[0] = (struct ph_term){.vertex = vertex};
    /* PyTorch's blocking collectives run on the compute stream. That stream then waits for them
     * without a wait call. */
    if (stream == busiest[stream->device]) stalls_locked(stream->device, &before, &stream->expr);
    if (!launches_graph) ph_queue_push_locked(stream, 1, 0, 0);
    if (last) {
        last->expr = stream->expr;
        last->position = ph_queue_position(stream);
    }
    stream->used = true;
    atomic_fetch_add_explicit(&ph_stats()->comm_launches, 1, memory_order_relaxed);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    ph_leave();
    return vertex;
}

void ph_launches_free(struct ph_launches *comm)
{
    pthread_mutex_lock(&ph_lock);
    ph_beside_free_locked(comm->beside);
    pthread_mutex_unlock(&ph_lock);
    if (comm->last) ph_event_destroy(comm->last);
}

void ph_launches_abort(const struct ph_launches *comm)
{
    pthread_mutex_lock(&ph_lock);
    ph_communication_aborted(1 + comm->number, ph_clock());
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        ph_expr_drop_aborted(&stream->expr);
    for (struct ph_event *event = events; event; event = event->next)
        ph_expr_drop_aborted(&event->expr);
    pthread_mutex_unlock(&ph_lock);
}

static void anchor_locked(uint64_t vertex, uint64_t time)
{
    ph_vertex_known(vertex, time);
    if (time >= ph_clock()) {
        ph_host_anchor(vertex, time);
    }
    atomic_store(&ph_stats()->blocked, 0);
    ph_clock_publish();
}

/* A host-blocking request whose answer is an anchor: [req, clock, extra, vertex, host_expression,
 * rest...]. */
void ph_rendezvous(enum ph_message type, const struct ph_pack *rest, uint32_t fields,
                   int64_t *answer, int answers)
{
    struct ph_pack body = {0};
    struct ph_expr expr = {0};
    ph_touch();
    ph_turn_communicates();
    pthread_mutex_lock(&ph_lock);
    ph_clock_advance(PH_CALL_MEET);
    ph_expr_add_host(&expr, 0);
    uint64_t vertex = ph_vertex_new(ph_clock(), PH_UNKNOWN);
    uint64_t req = ph_request_begin_locked(&body);
    ph_pack_uint(&body, vertex);
    ph_expr_pack(&body, &expr);
    ph_pack_raw(&body, rest->data, rest->length);
    struct ph_reply reply;
    ph_request_locked(type, req, &body, fields + 5, &reply, -1);
    for (int i = 0; i < answers; i++) answer[i] = ph_read_int(&reply);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    anchor_locked(vertex, time);
    ph_power_waited_locked(ph_clock());
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
}

/* The lowest vertex that may still be named. The hub may forget older ones. */
static uint64_t oldest_named_locked(void)
{
    uint64_t now = ph_clock(), oldest = ph_host_oldest(profiled_from);
    for (struct ph_stream *stream = streams; stream; stream = stream->next) {
        ph_expr_prune(&stream->expr, now);
        oldest = ph_queue_oldest(stream, now, ph_expr_oldest(&stream->expr, oldest));
    }
    for (struct ph_event *event = events; event; event = event->next) {
        if (event->flags & PH_EVENT_DISABLE_TIMING) ph_expr_prune(&event->expr, now);
        /* the job may still ask for the event's time */
        else if (event->recorded)
            ph_expr_settle(&event->expr);
        oldest = ph_expr_oldest(&event->expr, oldest);
    }
    return oldest;
}

void ph_timeline_profiled(bool on)
{
    pthread_mutex_lock(&ph_lock);
    profiled_from = on ? oldest_named_locked() : UINT64_MAX;
    pthread_mutex_unlock(&ph_lock);
}

/* Blocks the host until `expr` has been reached. The caller has merged the host's own term into it.
 */
static void synchronize_locked(struct ph_expr *expr)
{
    uint64_t known = ph_expr_exact(expr, ph_clock());
    if (known != PH_UNKNOWN) { /* it depends on no other rank */
        ph_host_reach(known > ph_clock() ? known : ph_clock());
        ph_clock_publish();
        return;
    }
    struct ph_pack body = {0};
    uint64_t vertex = ph_vertex_new(ph_expr_lower(expr), PH_UNKNOWN);
    ph_extra_keep(ph_expr_oldest(expr, oldest_named_locked()));
    uint64_t req = ph_request_begin_locked(&body);
    ph_pack_uint(&body, vertex);
    ph_expr_pack(&body, expr);
    struct ph_reply reply;
    ph_request_locked(PH_MESSAGE_SYNC, req, &body, 5, &reply, -1);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_gaps_told_locked(&reply, ph_power_longer_locked);
    ph_gaps_synchronized_locked();
    ph_reply_free(&reply);
    ph_expr_reached(expr, time);
    anchor_locked(vertex, time);
}

void ph_host_settle_locked(void)
{
    struct ph_expr own = {0};
    ph_expr_add_host(&own, 0);
    synchronize_locked(&own);
}

/* Settles beside which launches compute ran, because it is about to wait for communication: for
 * `event` on one GPU, or (NULL) until the host has waited. */
static void compute_waits_locked(const struct ph_expr *event, int device)
{
    for (int i = 0; i < DEVICES; i++)
        if (busiest[i] && (!event || i == device))
            ph_beside_computed_locked(i, ph_expr_lower(&busiest[i]->expr));
    if (event)
        ph_beside_waited_locked(device, event);
    else
        ph_beside_over_locked();
}

static void synchronize_with(const struct ph_expr *expr)
{
    pthread_mutex_lock(&ph_lock);
    struct ph_expr all = *expr; /* the event may be recorded again meanwhile */
    pthread_mutex_unlock(&ph_lock);
    ph_host_call(PH_CALL_SYNC);
    PH_TRACE(ph_trace_call_begin("cudaDeviceSynchronize"));
    pthread_mutex_lock(&ph_lock);
    uint64_t before = ph_clock();
    compute_waits_locked(NULL, 0);
    if (!ph_host.open || ph_expr_upper(&all) > before) {
        struct ph_expr own = {0};
        ph_expr_add_host(&own, 0);
        ph_expr_merge_all(&all, &own);
        synchronize_locked(&all);
        /* Only here, not where a full launch queue holds the host back: that would count queued
         * work as done. */
        ph_power_waited_locked(ph_clock());
    }
    uint64_t waited = ph_clock() - before;
    pthread_mutex_unlock(&ph_lock);
    ph_watchdogs_catch_up(waited);
    PH_TRACE_END();
    ph_leave();
}

void ph_event_synchronize(const struct ph_event *event)
{
    PH_TRACE(ph_trace_api("cudaEventSynchronize"));
    if (event->recorded) synchronize_with(&event->expr);
}

void ph_stream_synchronize(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    ph_stream_order_locked(stream);
    pthread_mutex_unlock(&ph_lock);
    PH_TRACE(ph_trace_api("cudaStreamSynchronize"));
    synchronize_with(&stream->expr);
    pthread_mutex_lock(&ph_lock);
    ph_expr_prune(&stream->expr, ph_clock());
    pthread_mutex_unlock(&ph_lock);
}

static bool others_used_locked(int device)
{
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device != device && stream->used) return true;
    return false;
}

void ph_device_synchronize(int device)
{
    struct ph_expr all = {0};
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device && stream->used) {
            ph_expr_prune(&stream->expr, ph_clock());
            ph_expr_merge_all(&all, &stream->expr);
        }
    pthread_mutex_unlock(&ph_lock);
    synchronize_with(&all);
    pthread_mutex_lock(&ph_lock);
    /* all work issued so far has ended */
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device) stream->expr.count = 0;
    if (!others_used_locked(device)) ph_all_over(ph_clock());
    pthread_mutex_unlock(&ph_lock);
}

/* ---- events ---- */
struct ph_event *ph_event_create(unsigned flags)
{
    ph_touch();
    struct ph_event *event = calloc(1, sizeof *event);
    if (!event) ph_die("out of host memory");
    *event = (struct ph_event){.magic = EVENT_MAGIC, .flags = flags, .device = ph_device_current()};
    pthread_mutex_lock(&ph_lock);
    event->next = events;
    event->link = &events;
    if (events) events->link = &event->next;
    events = event;
    pthread_mutex_unlock(&ph_lock);
    return event;
}

bool ph_event_valid(const struct ph_event *event) { return event && event->magic == EVENT_MAGIC; }

bool ph_event_destroy(struct ph_event *event)
{
    if (!ph_event_valid(event)) return false;
    pthread_mutex_lock(&ph_lock);
    *event->link = event->next;
    if (event->next) event->next->link = event->link;
    event->magic = 0;
    pthread_mutex_unlock(&ph_lock);
    free(event->tails.op);
    free(event);
    return true;
}

void ph_event_record(struct ph_event *event, struct ph_stream *stream)
{
    ph_host_call(PH_CALL_RECORD);
    pthread_mutex_lock(&ph_lock);
    ph_stream_order_locked(stream);
    ph_expr_prune(&stream->expr, ph_clock());
    ph_queue_add_host(stream, (int64_t)ph_spec()->launch_latency_ns);
    stream->used = true;
    event->expr = stream->expr;
    /* The job may ask for its time long after, when nothing else is left of what overlapped it. */
    if (!(event->flags & PH_EVENT_DISABLE_TIMING)) ph_expr_keep(&event->expr);
    event->position = ph_queue_position(stream);
    event->recorded = true;
    atomic_store(&event->put_off_ns, 0);
    event->device = stream->device;
    pthread_mutex_unlock(&ph_lock);
    PH_TRACE(ph_trace_call("cudaEventRecord"));
    ph_leave();
}

void ph_stream_wait(struct ph_stream *stream, const struct ph_event *event)
{
    ph_host_call(PH_CALL_WAIT);
    pthread_mutex_lock(&ph_lock);
    if (event->recorded) {
        struct ph_expr before = stream->expr;
        ph_expr_prune(&before, ph_clock());
        stream->expr = before;
        bool stalls =
            stream == busiest[stream->device] && ph_expr_waits_for_more(&before, &event->expr);
        if (stalls) compute_waits_locked(&event->expr, stream->device);
        ph_expr_merge(&stream->expr, &event->expr);
        ph_queue_after(stream, &event->position);
        if (stalls) {
            ph_expr_add_host(&before, (int64_t)ph_spec()->launch_latency_ns);
            struct ph_expr after = stream->expr;
            ph_expr_add_host(&after, (int64_t)ph_spec()->launch_latency_ns);
            stalls_locked(stream->device, &before, &after);
        }
        stream->used = true;
    }
    pthread_mutex_unlock(&ph_lock);
    PH_TRACE(ph_trace_call("cudaStreamWaitEvent"));
    ph_leave();
}
