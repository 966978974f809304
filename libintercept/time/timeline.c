/* timeline.c - the rank's part of the event graph: streams and events, and the messages about them.
 *
 * Why it exists: a run of kernels between two points that another rank can observe is an affine
 * max-plus map, so it is folded into the stream's head (time/expression.c), exactly and on the
 * spot; only collectives and host synchronisations become messages. */
#include "time/timeline.h"
#include "backend.h"
#include "base/fork.h"
#include "base/log.h"
#include "time/gpu_faults.h"
#include "time/power.h"
#include "time/watchdog.h"
#include "trace/trace_log.h"
#include <stdlib.h>
#include <string.h>

enum {
    STREAM_MAGIC = 0x5048534d,
    EVENT_MAGIC = 0x50484556,
    DEVICES = 8,
    STREAM_NON_BLOCKING = 1,
    EVENT_DISABLE_TIMING = 2
};
static uint64_t next_stream = 16;
static struct ph_stream *streams;
static struct ph_stream *_Atomic legacy[DEVICES]; /* set under ph_lock */
static struct ph_event *events;
/* the one whose waiting for communication counts as exposed */
static struct ph_stream *busiest[DEVICES];

static _Thread_local bool launches_graph;

void ph_graph_launching(bool on) { launches_graph = on; }
bool ph_replaying(void) { return launches_graph; }

static void forget(void)
{
    streams = NULL;
    events = NULL;
    for (int i = 0; i < DEVICES; i++) legacy[i] = NULL;
    memset(busiest, 0, sizeof busiest);
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
            ph_head_merge(&stream->head, &other->head);
}

static void run_locked(struct ph_stream *stream, uint64_t duration_ns, uint64_t drag_ns)
{
    const struct ph_device_spec *spec = ph_spec();
    uint64_t gap_ns = launches_graph ? spec->graph_gap_ns : spec->kernel_gap_ns;
    ph_stream_order_locked(stream);
    for (int i = 0; i < stream->head.count; i++) stream->head.entry[i].lag += (int64_t)gap_ns;
    ph_queue_add_host(stream, (int64_t)spec->launch_latency_ns);
    for (int i = 0; i < stream->head.count; i++)
        stream->head.entry[i].work += (int64_t)duration_ns,
            stream->head.entry[i].drag += (int64_t)drag_ns;
    ph_queue_moved(stream, duration_ns, gap_ns);
    stream->used = true;
}

uint32_t ph_stream_trace_number(const struct ph_stream *stream)
{
    return ph_stream_is_legacy(stream) ? PH_TRACE_LEGACY_STREAM : (uint32_t)stream->id;
}

static void trace_work(const struct ph_stream *stream, uint64_t duration_ns, uint64_t drag_ns,
                       uint32_t source)
{
    struct ph_trace_work work = {.stream = ph_stream_trace_number(stream),
                                 .source = source,
                                 .device = stream->device,
                                 .duration_ns = duration_ns,
                                 .contention_ns = drag_ns};
    ph_trace_work_locked(&work, stream->head.entry,
                         (size_t)stream->head.count * sizeof *stream->head.entry);
}

void ph_run_locked(struct ph_stream *stream, struct ph_time time)
{
    uint64_t duration_ns = ph_straggle(
        stream->device, ph_power_run_locked(stream->device, time.duration_ns, time.bound_by),
        ph_clock());
    uint64_t drag_ns = duration_ns * time.drag_permille / 1000;
    if (!launches_graph) ph_queue_wait_locked(stream, time.works);
    run_locked(stream, duration_ns, drag_ns);
    if (!launches_graph) ph_queue_push_locked(stream, time.works, duration_ns, drag_ns);
    PH_TRACE(trace_work(stream, duration_ns, drag_ns, time.source));
    stream->busy_ns += duration_ns;
    if (!busiest[stream->device] || stream->busy_ns > busiest[stream->device]->busy_ns)
        busiest[stream->device] = stream;
    struct ph_rank_stats *page = ph_stats();
    atomic_fetch_add_explicit(&page->busy_ns[time.source], duration_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->launches[time.source], 1, memory_order_relaxed);
}

void ph_run(struct ph_stream *stream, struct ph_time time)
{
    pthread_mutex_lock(&ph_lock);
    ph_run_locked(stream, time);
    pthread_mutex_unlock(&ph_lock);
}

/* ---- messages ---- */
/* Whether compute on the stream's GPU is queued beyond `time`: judged by lower bounds, which are
 * all that is known here. */
static bool computing_past_locked(const struct ph_stream *stream, uint64_t time)
{
    const struct ph_stream *compute = busiest[stream->device];
    return compute && compute != stream && ph_head_lower(&compute->head) > time;
}

uint64_t ph_communicate(struct ph_stream *stream, uint64_t comm, const struct ph_pack *ops,
                        uint32_t count)
{
    struct ph_pack body = {0};
    ph_host_call(PH_CALL_COMM);
    PH_TRACE(ph_trace_call("cuLaunchKernelEx"));
    ph_observers_due();
    pthread_mutex_lock(&ph_lock);
    if (!launches_graph) ph_queue_wait_locked(stream, 1);
    ph_stream_order_locked(stream);
    ph_head_prune(&stream->head, ph_clock());
    ph_queue_add_host(stream, (int64_t)ph_spec()->launch_latency_ns);
    uint64_t node = ph_node_new(ph_head_lower(&stream->head), PH_UNKNOWN);
    ph_pack_uint(&body, ph_clock());
    ph_extra_pack(&body, computing_past_locked(stream, ph_head_lower(&stream->head)));
    ph_pack_uint(&body, comm);
    ph_pack_uint(&body, node);
    ph_head_pack(&body, &stream->head);
    ph_pack_array(&body, count);
    ph_pack_raw(&body, ops->data, ops->length);
    ph_communicated(node, stream->last_launch);
    stream->last_launch = node;
    ph_send(PH_MESSAGE_OPS, &body,
            6); /* under ph_lock: messages ph_leave in the order of their nodes */
    struct ph_head before = stream->head;
    stream->head.count = 1;
    stream->head.entry[0] = (struct ph_entry){node, 0, 0, 0};
    /* PyTorch's blocking collectives run on the stream that computes, which then waits without
     * being told to */
    if (stream == busiest[stream->device]) ph_extra_stall(stream->device, &before, &stream->head);
    if (!launches_graph) ph_queue_push_locked(stream, 1, 0, 0);
    stream->used = true;
    atomic_fetch_add_explicit(&ph_stats()->comm_launches, 1, memory_order_relaxed);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    ph_leave();
    return node;
}

static void anchor_locked(uint64_t node, uint64_t time)
{
    ph_node_known(node, time);
    if (time >= ph_clock()) {
        ph_host_anchor(node, time);
    }
    atomic_store(&ph_stats()->blocked, 0);
    ph_clock_publish();
}

/* A host-blocking request whose answer is an anchor: [req, clock, extra, node, host_head, rest...].
 */
void ph_rendezvous(enum ph_message type, const struct ph_pack *rest, uint32_t fields,
                   int64_t *answer, int answers)
{
    struct ph_pack body = {0};
    struct ph_head head = {0};
    uint64_t req = ph_request_id();
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    ph_clock_advance(PH_CALL_MEET);
    ph_head_add_host(&head, 0);
    uint64_t node = ph_node_new(ph_clock(), PH_UNKNOWN);
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, ph_clock());
    ph_extra_pack(&body, false);
    ph_pack_uint(&body, node);
    ph_head_pack(&body, &head);
    ph_pack_raw(&body, rest->data, rest->length);
    atomic_store(&ph_stats()->blocked, 1);
    ph_send(type, &body, fields + 5);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    for (int i = 0; i < answers; i++) answer[i] = ph_read_int(&reply);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    pthread_mutex_lock(&ph_lock);
    anchor_locked(node, time);
    ph_power_waited_locked(ph_clock());
    pthread_mutex_unlock(&ph_lock);
    ph_leave();
}

/* The lowest node that may still be named: history before it may go. */
static uint64_t oldest_named_locked(void)
{
    uint64_t now = ph_clock(), oldest = ph_host_oldest(UINT64_MAX);
    for (struct ph_stream *stream = streams; stream; stream = stream->next) {
        ph_head_prune(&stream->head, now);
        oldest = ph_queue_oldest(stream, now, ph_head_oldest(&stream->head, oldest));
    }
    for (struct ph_event *event = events; event; event = event->next) {
        if (event->flags & EVENT_DISABLE_TIMING) ph_head_prune(&event->head, now);
        /* somebody may still ask for its time */
        else if (event->recorded)
            ph_head_settle(&event->head);
        oldest = ph_head_oldest(&event->head, oldest);
    }
    return oldest;
}

/* Blocks the host until `head` (already merged with the host's own entry) has been reached. */
static void synchronize_locked(struct ph_head *head)
{
    uint64_t known = ph_head_exact(head, ph_clock());
    if (known != PH_UNKNOWN) { /* nothing in it depends on another rank */
        ph_host_reach(known > ph_clock() ? known : ph_clock());
        ph_clock_publish();
        return;
    }
    struct ph_pack body = {0};
    uint64_t req = ph_request_id(), node = ph_node_new(ph_head_lower(head), PH_UNKNOWN);
    ph_extra_keep(ph_head_oldest(head, oldest_named_locked()));
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, ph_clock());
    ph_extra_pack(&body, false);
    ph_pack_uint(&body, node);
    ph_head_pack(&body, head);
    atomic_store(&ph_stats()->blocked, 1);
    ph_send(PH_MESSAGE_SYNC, &body, 5);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    pthread_mutex_lock(&ph_lock);
    ph_head_reached(head, time);
    anchor_locked(node, time);
}

void ph_host_settle_locked(void)
{
    struct ph_head own = {0};
    ph_head_add_host(&own, 0);
    synchronize_locked(&own);
}

static void synchronize_with(const struct ph_head *head)
{
    struct ph_head all = *head;
    ph_host_call(PH_CALL_SYNC);
    PH_TRACE(ph_trace_call_begin("cudaDeviceSynchronize"));
    pthread_mutex_lock(&ph_lock);
    uint64_t before = ph_clock();
    if (!ph_host.open || ph_head_upper(&all) > before) {
        struct ph_head own = {0};
        ph_head_add_host(&own, 0);
        ph_head_merge_all(&all, &own);
        synchronize_locked(&all);
        /* not where a full queue held the host back: what is queued would count as done */
        ph_power_waited_locked(ph_clock());
    }
    uint64_t waited = ph_clock() - before;
    pthread_mutex_unlock(&ph_lock);
    ph_observers_catch_up(waited);
    PH_TRACE_END();
    ph_leave();
}

void ph_event_synchronize(const struct ph_event *event)
{
    PH_TRACE(ph_trace_api("cudaEventSynchronize"));
    if (event->recorded) synchronize_with(&event->head);
}

void ph_stream_synchronize(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    ph_stream_order_locked(stream);
    pthread_mutex_unlock(&ph_lock);
    PH_TRACE(ph_trace_api("cudaStreamSynchronize"));
    synchronize_with(&stream->head);
    pthread_mutex_lock(&ph_lock);
    ph_head_prune(&stream->head, ph_clock());
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
    struct ph_head all = {0};
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device && stream->used) {
            ph_head_prune(&stream->head, ph_clock());
            ph_head_merge_all(&all, &stream->head);
        }
    pthread_mutex_unlock(&ph_lock);
    synchronize_with(&all);
    pthread_mutex_lock(&ph_lock);
    /* all work issued so far has ended */
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device) stream->head.count = 0;
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
    free(event->tails.node);
    free(event);
    return true;
}

void ph_event_record(struct ph_event *event, struct ph_stream *stream)
{
    ph_host_call(PH_CALL_RECORD);
    pthread_mutex_lock(&ph_lock);
    ph_stream_order_locked(stream);
    ph_head_prune(&stream->head, ph_clock());
    ph_queue_add_host(stream, (int64_t)ph_spec()->launch_latency_ns);
    stream->used = true;
    event->head = stream->head;
    event->place = ph_queue_place(stream);
    event->recorded = true;
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
        struct ph_head before = stream->head;
        ph_head_prune(&before, ph_clock());
        stream->head = before;
        bool stalls =
            stream == busiest[stream->device] && ph_head_waits_for_more(&before, &event->head);
        ph_head_merge(&stream->head, &event->head);
        ph_queue_after(stream, &event->place);
        if (stalls) {
            ph_head_add_host(&before, (int64_t)ph_spec()->launch_latency_ns);
            struct ph_head after = stream->head;
            ph_head_add_host(&after, (int64_t)ph_spec()->launch_latency_ns);
            ph_extra_stall(stream->device, &before, &after);
        }
        stream->used = true;
    }
    pthread_mutex_unlock(&ph_lock);
    PH_TRACE(ph_trace_call("cudaStreamWaitEvent"));
    ph_leave();
}
