/* timeline.c - the rank's part of the event graph: the host clock, streams and events as max-plus heads.
 *
 * Why it exists: a run of kernels between two points that another rank can observe is an affine max-plus map, so it is folded
 * here, exactly and on the spot; only collectives and host synchronisations become messages (DESIGN section 4).
 *
 * A head says max over entries of t(node) + lag + work. Nodes of this process: 0 (its origin), anchors (times that the hub has
 * answered, known here), collective ends and materialised heads (unknown here, bounded by `upper` and `lower`). The host's
 * time is the last anchor plus an offset. Entries that can no longer decide anything are dropped: an operation never starts
 * before the host's clock, so an entry known to lie at or before the clock is dominated. */
#include "cudart.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAM_MAGIC = 0x5048534d, EVENT_MAGIC = 0x50484556, RING = 8192, HEAD_FULL = PH_HEAD_MAX - 2, DEVICES = 8, STREAM_NON_BLOCKING = 1 };
static const uint64_t UNKNOWN = UINT64_MAX;

pthread_mutex_t ph_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool touched;
static bool measured = true;
static double scale = 1.0;
static struct { uint64_t node, time; int64_t offset; } host; /* anchor and what passed since */
static uint64_t next_node = 1, next_stream = 16;
static struct bound { uint64_t node, upper, lower; } bounds[RING];
static struct ph_stream *streams, *legacy[DEVICES];
static struct ph_pack pending_nodes, pending_stalls; /* the `extra` of the next message */
static uint32_t pending_node_count, pending_stall_count;

static _Thread_local struct { bool chain, paused; uint64_t cpu; } me;

/* ---- the host's chain --------------------------------------------------------------------------------------------------- */
static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t now_locked(void) { return host.time + (uint64_t)host.offset; }

static void publish_locked(void) { atomic_store_explicit(&ph_page()->clock_ns, now_locked(), memory_order_release); }

/* The first call of a thread only marks where its CPU time starts. A thread that has only ever asked (NCCL's watchdog polls
 * events) is not part of the chain: its time is not the job's. */
static void advance_locked(uint64_t cost_ns)
{
    if (me.paused) return;
    if (measured) {
        uint64_t cpu = thread_cpu_ns();
        if (me.chain) {
            uint64_t spent = cpu > me.cpu ? cpu - me.cpu : 0;
            host.offset += (int64_t)((double)spent * scale) + (int64_t)cost_ns;
            atomic_fetch_add_explicit(&ph_page()->host_cpu_ns, spent, memory_order_relaxed);
        }
        me.cpu = cpu;
    }
    me.chain = true;
    atomic_fetch_add_explicit(&ph_page()->calls, 1, memory_order_relaxed);
    publish_locked();
}

/* What the interceptor itself spent is not the job's: called on the way out. */
static void leave(void)
{
    if (measured && !me.paused) me.cpu = thread_cpu_ns();
}

void ph_host_pause(void)
{
    if (me.paused || !ph_touched()) return;
    pthread_mutex_lock(&ph_lock);
    if (me.chain) advance_locked(0);
    pthread_mutex_unlock(&ph_lock);
    me.paused = true;
}

void ph_host_resume(void)
{
    if (!me.paused) return;
    me.paused = false;
    leave();
}

uint64_t ph_now(void)
{
    pthread_mutex_lock(&ph_lock);
    if (me.chain) advance_locked(0);
    uint64_t time = now_locked();
    pthread_mutex_unlock(&ph_lock);
    return time;
}

void ph_host_cost(uint64_t nanoseconds)
{
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    advance_locked(nanoseconds);
    pthread_mutex_unlock(&ph_lock);
    leave();
}

/* ---- what is known of nodes ----------------------------------------------------------------------------------------------- */
static struct bound *bound_of(uint64_t node)
{
    struct bound *slot = &bounds[node % RING];
    return slot->node == node ? slot : NULL;
}

static uint64_t new_node_locked(uint64_t lower, uint64_t upper)
{
    uint64_t node = next_node++;
    bounds[node % RING] = (struct bound){node, upper, lower};
    return node;
}

static uint64_t upper_of(const struct ph_entry *entry)
{
    struct bound *bound = bound_of(entry->node);
    return bound && bound->upper != UNKNOWN ? bound->upper + (uint64_t)(entry->lag + entry->work) : UNKNOWN;
}

static uint64_t lower_of(const struct ph_entry *entry)
{
    struct bound *bound = bound_of(entry->node);
    return (bound ? bound->lower : 0) + (uint64_t)(entry->lag + entry->work);
}

static void prune_locked(struct ph_head *head, uint64_t time)
{
    int kept = 0;
    for (int i = 0; i < head->count; i++)
        if (upper_of(&head->entry[i]) > time) head->entry[kept++] = head->entry[i];
    head->count = kept;
}

/* ---- heads ------------------------------------------------------------------------------------------------------------------ */
static void pack_head(struct ph_pack *pack, const struct ph_head *head)
{
    ph_pack_array(pack, (uint32_t)head->count * 3);
    for (int i = 0; i < head->count; i++) {
        ph_pack_uint(pack, head->entry[i].node);
        ph_pack_int(pack, head->entry[i].lag);
        ph_pack_int(pack, head->entry[i].work);
    }
}

static uint64_t head_lower(const struct ph_head *head)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++)
        if (lower_of(&head->entry[i]) > most) most = lower_of(&head->entry[i]);
    return most;
}

static uint64_t head_upper(const struct ph_head *head)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++)
        if (upper_of(&head->entry[i]) > most) most = upper_of(&head->entry[i]); /* UNKNOWN is the largest */
    return most;
}

/* The head's time if it depends on nothing that other ranks decide, else UNKNOWN. Entries known to lie in the past of `now`
 * cannot decide it: the caller's own entry is at `now`. */
static uint64_t head_exact(const struct ph_head *head, uint64_t now)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++) {
        uint64_t upper = upper_of(&head->entry[i]);
        if (upper > now && upper != lower_of(&head->entry[i])) return UNKNOWN;
        if (upper > most) most = upper;
    }
    return most;
}

/* A head that grew long becomes a node of its own, defined by the next message. */
static void materialise_locked(struct ph_head *head)
{
    uint64_t node = new_node_locked(head_lower(head), head_upper(head));
    ph_pack_array(&pending_nodes, 2);
    ph_pack_uint(&pending_nodes, node);
    pack_head(&pending_nodes, head);
    pending_node_count++;
    head->count = 1;
    head->entry[0] = (struct ph_entry){node, 0, 0};
}

static void merge_entry_locked(struct ph_head *head, struct ph_entry fresh)
{
    for (int i = 0; i < head->count; i++)
        if (head->entry[i].node == fresh.node) {
            if (fresh.lag + fresh.work > head->entry[i].lag + head->entry[i].work) head->entry[i] = fresh;
            return;
        }
    if (head->count >= HEAD_FULL) {
        prune_locked(head, now_locked());
        if (head->count >= HEAD_FULL) materialise_locked(head);
    }
    head->entry[head->count++] = fresh;
}

static void merge_locked(struct ph_head *head, const struct ph_head *other)
{
    for (int i = 0; i < other->count; i++) merge_entry_locked(head, other->entry[i]);
}

static void merge_host_locked(struct ph_head *head, int64_t latency)
{
    merge_entry_locked(head, (struct ph_entry){host.node, host.offset + latency, 0});
}

/* Nodes that are not anchors come from communication. */
static bool waits_for_more_locked(const struct ph_head *head, const struct ph_head *event)
{
    for (int i = 0; i < event->count; i++) {
        struct bound *bound = bound_of(event->entry[i].node);
        if (bound && bound->upper == bound->lower) continue;
        bool known = false;
        for (int j = 0; j < head->count && !known; j++)
            known = head->entry[j].node == event->entry[i].node &&
                    head->entry[j].lag + head->entry[j].work >= event->entry[i].lag + event->entry[i].work;
        if (!known) return true;
    }
    return false;
}

/* ---- joining the run ---------------------------------------------------------------------------------------------------- */
static struct timespec touch_real, touch_mono;

static void forget_in_child(void)
{
    pthread_mutex_init(&ph_lock, NULL);
    if (!ph_touched()) return;
    atomic_store(&touched, false);
    memset(bounds, 0, sizeof bounds);
    memset(&host, 0, sizeof host);
    memset(&me, 0, sizeof me);
    next_node = 1;
    streams = NULL;
    memset(legacy, 0, sizeof legacy);
    ph_pack_free(&pending_nodes), ph_pack_free(&pending_stalls);
    pending_node_count = pending_stall_count = 0;
    ph_hub_forget();
}

bool ph_touched(void) { return atomic_load_explicit(&touched, memory_order_acquire); }


void ph_touch(void)
{
    static bool fork_handler;
    if (ph_touched()) return;
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!ph_touched()) {
        if (!fork_handler) pthread_atfork(NULL, NULL, forget_in_child);
        fork_handler = true;
        const char *mode = ph_env("PHANTORA_HOST_TIME"), *factor = ph_env("PHANTORA_HOST_SCALE");
        measured = !mode || strcmp(mode, "none") != 0;
        if (factor) scale = strtod(factor, NULL);
        ph_hub_connect();
        bounds[0] = (struct bound){0, 0, 0};
        clock_gettime(CLOCK_REALTIME, &touch_real);
        clock_gettime(CLOCK_MONOTONIC, &touch_mono);
        atomic_store_explicit(&touched, true, memory_order_release);
        ph_values_load();
        me.chain = true;
        me.cpu = thread_cpu_ns();
    }
    pthread_mutex_unlock(&once);
}

/* For the start-up hook that shows simulated time through Python's clocks: 0 before CUDA is touched, else 1 + elapsed. */
PH_EXPORT uint64_t phantora_elapsed_ns(void);
PH_EXPORT uint64_t phantora_elapsed_ns(void)
{
    if (!ph_touched()) return 0;
    uint64_t elapsed = 1 + ph_now();
    leave();
    return elapsed;
}

PH_EXPORT int64_t phantora_touch_clock(int clock);
PH_EXPORT int64_t phantora_touch_clock(int clock)
{
    const struct timespec *t = clock == CLOCK_REALTIME ? &touch_real : &touch_mono;
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

PH_EXPORT void phantora_report_peaks(uint64_t allocated, uint64_t reserved);
PH_EXPORT void phantora_report_peaks(uint64_t allocated, uint64_t reserved)
{
    if (!ph_touched()) return;
    ph_page()->torch_peak_allocated = allocated;
    ph_page()->torch_peak_reserved = reserved;
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------- */
static struct ph_stream *add_stream_locked(int device, unsigned flags, int priority)
{
    struct ph_stream *stream = calloc(1, sizeof *stream);
    if (!stream) ph_die("out of host memory");
    *stream = (struct ph_stream){STREAM_MAGIC, device, priority, flags, next_stream++, false, {0}, streams};
    streams = stream;
    ph_device_use(device);
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
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream **link = &streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            found = true;
            break;
        }
    pthread_mutex_unlock(&ph_lock);
    if (found) stream->magic = 0, free(stream);
    return found;
}

static struct ph_stream *legacy_locked(int device)
{
    if (!legacy[device]) legacy[device] = add_stream_locked(device, 0, 0);
    return legacy[device];
}

struct ph_stream *ph_stream_resolve(void *handle)
{
    if ((uintptr_t)handle > 2) return ((struct ph_stream *)handle)->magic == STREAM_MAGIC ? handle : NULL;
    ph_touch(); /* 0 and cudaStreamLegacy (1); cudaStreamPerThread (2) is treated as the legacy stream's equal */
    pthread_mutex_lock(&ph_lock);
    struct ph_stream *stream = legacy_locked(ph_device_current());
    pthread_mutex_unlock(&ph_lock);
    return stream;
}

/* The legacy stream and blocking streams wait for each other (CUDA's implicit synchronisation). */
static void implicit_order_locked(struct ph_stream *stream)
{
    if (stream->flags & STREAM_NON_BLOCKING) return;
    bool is_legacy = stream == legacy[stream->device];
    for (struct ph_stream *other = streams; other; other = other->next)
        if (other != stream && other->device == stream->device && other->used && !(other->flags & STREAM_NON_BLOCKING) &&
            (is_legacy || other == legacy[stream->device]))
            merge_locked(&stream->head, &other->head);
}

static void run_locked(struct ph_stream *stream, uint64_t duration_ns)
{
    const struct ph_device_spec *spec = ph_spec();
    implicit_order_locked(stream);
    for (int i = 0; i < stream->head.count; i++) stream->head.entry[i].lag += (int64_t)spec->kernel_gap_ns;
    merge_host_locked(&stream->head, (int64_t)spec->launch_latency_ns);
    for (int i = 0; i < stream->head.count; i++) stream->head.entry[i].work += (int64_t)duration_ns;
    stream->used = true;
}

void ph_run(struct ph_stream *stream, uint64_t duration_ns, enum ph_source source)
{
    pthread_mutex_lock(&ph_lock);
    run_locked(stream, duration_ns);
    struct ph_rank_page *page = ph_page();
    atomic_fetch_add_explicit(&page->busy_ns[source], duration_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->launches[source], 1, memory_order_relaxed);
    pthread_mutex_unlock(&ph_lock);
}

void ph_submit(void *handle, const struct ph_pack *signature)
{
    ph_host_cost(ph_spec()->launch_cost_ns);
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) ph_die("a library call names a stream that does not exist");
    enum ph_source source;
    uint64_t duration = ph_duration(signature, &source);
    ph_run(stream, duration, source);
    atomic_fetch_add_explicit(&ph_page()->kernel_launches, 1, memory_order_relaxed);
    leave();
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */
static void pack_extra_locked(struct ph_pack *body)
{
    ph_pack_map(body, (pending_node_count > 0) + (pending_stall_count > 0));
    if (pending_node_count) {
        ph_pack_str(body, "nodes");
        ph_pack_array(body, pending_node_count);
        ph_pack_raw(body, pending_nodes.data, pending_nodes.length);
    }
    if (pending_stall_count) {
        ph_pack_str(body, "stalls");
        ph_pack_array(body, pending_stall_count);
        ph_pack_raw(body, pending_stalls.data, pending_stalls.length);
    }
    pending_nodes.length = pending_stalls.length = 0;
    pending_node_count = pending_stall_count = 0;
}

uint64_t ph_communicate(struct ph_stream *stream, uint64_t comm, const struct ph_pack *ops, uint32_t count)
{
    struct ph_pack body = {0};
    ph_host_cost(ph_spec()->launch_cost_ns);
    pthread_mutex_lock(&ph_lock);
    implicit_order_locked(stream);
    prune_locked(&stream->head, now_locked());
    merge_host_locked(&stream->head, (int64_t)ph_spec()->launch_latency_ns);
    uint64_t node = new_node_locked(head_lower(&stream->head), UNKNOWN);
    ph_pack_uint(&body, now_locked());
    pack_extra_locked(&body);
    ph_pack_uint(&body, comm);
    ph_pack_uint(&body, node);
    pack_head(&body, &stream->head);
    ph_pack_array(&body, count);
    ph_pack_raw(&body, ops->data, ops->length);
    ph_send(PH_OPS, &body, 6); /* under ph_lock: messages leave in the order of their nodes */
    stream->head.count = 1;
    stream->head.entry[0] = (struct ph_entry){node, 0, 0};
    stream->used = true;
    atomic_fetch_add_explicit(&ph_page()->comm_launches, 1, memory_order_relaxed);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    leave();
    return node;
}

static void anchor_locked(uint64_t node, uint64_t time)
{
    bounds[node % RING] = (struct bound){node, time, time};
    if (time >= now_locked()) {
        host.node = node;
        host.time = time;
        host.offset = 0;
    }
    atomic_store(&ph_page()->blocked, 0);
    publish_locked();
}

/* A host-blocking request whose answer is an anchor: [req, clock, extra, node, host_head, rest...]. */
void ph_rendezvous(enum ph_message_type type, const struct ph_pack *rest, uint32_t fields, int64_t *answer, int answers)
{
    struct ph_pack body = {0};
    struct ph_head head = {0};
    uint64_t req = ph_request_id();
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    advance_locked(0);
    uint64_t node = new_node_locked(now_locked(), UNKNOWN);
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, now_locked());
    pack_extra_locked(&body);
    ph_pack_uint(&body, node);
    merge_host_locked(&head, 0);
    pack_head(&body, &head);
    ph_pack_raw(&body, rest->data, rest->length);
    atomic_store(&ph_page()->blocked, 1);
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
    pthread_mutex_unlock(&ph_lock);
    leave();
}

/* Blocks the host until `head` (already merged with the host's own entry) has been reached. */
static void synchronize_locked(struct ph_head *head)
{
    uint64_t known = head_exact(head, now_locked());
    if (known != UNKNOWN) { /* nothing in it depends on another rank */
        if (known > now_locked()) host.offset += (int64_t)(known - now_locked());
        publish_locked();
        return;
    }
    struct ph_pack body = {0};
    uint64_t req = ph_request_id(), node = new_node_locked(head_lower(head), UNKNOWN);
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, now_locked());
    pack_extra_locked(&body);
    ph_pack_uint(&body, node);
    pack_head(&body, head);
    atomic_store(&ph_page()->blocked, 1);
    ph_send(PH_SYNC, &body, 5);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    pthread_mutex_lock(&ph_lock);
    for (int i = 0; i < head->count; i++) { /* every entry was reached by then */
        struct bound *bound = bound_of(head->entry[i].node);
        uint64_t at_most = time - (uint64_t)(head->entry[i].lag + head->entry[i].work);
        if (bound && at_most < bound->upper) bound->upper = at_most;
    }
    anchor_locked(node, time);
}

static void synchronize_with(const struct ph_head *head)
{
    struct ph_head all = *head;
    ph_host_cost(ph_spec()->sync_cost_ns);
    pthread_mutex_lock(&ph_lock);
    merge_host_locked(&all, 0);
    synchronize_locked(&all);
    pthread_mutex_unlock(&ph_lock);
    leave();
}

void ph_event_synchronize(const struct ph_event *event)
{
    if (event->recorded) synchronize_with(&event->head);
}

void ph_stream_synchronize(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    implicit_order_locked(stream);
    pthread_mutex_unlock(&ph_lock);
    synchronize_with(&stream->head);
    pthread_mutex_lock(&ph_lock);
    prune_locked(&stream->head, now_locked());
    pthread_mutex_unlock(&ph_lock);
}

void ph_device_synchronize(int device)
{
    struct ph_head all = {0};
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device && stream->used) {
            prune_locked(&stream->head, now_locked());
            merge_locked(&all, &stream->head);
        }
    pthread_mutex_unlock(&ph_lock);
    synchronize_with(&all);
    pthread_mutex_lock(&ph_lock);
    for (struct ph_stream *stream = streams; stream; stream = stream->next) /* all work issued so far has ended */
        if (stream->device == device) stream->head.count = 0;
    pthread_mutex_unlock(&ph_lock);
}

/* ---- events ------------------------------------------------------------------------------------------------------------------ */
struct ph_event *ph_event_create(unsigned flags)
{
    ph_touch();
    struct ph_event *event = calloc(1, sizeof *event);
    if (!event) ph_die("out of host memory");
    *event = (struct ph_event){EVENT_MAGIC, flags, ph_device_current(), false, {0}};
    return event;
}

bool ph_event_valid(const struct ph_event *event) { return event && event->magic == EVENT_MAGIC; }

bool ph_event_destroy(struct ph_event *event)
{
    if (!ph_event_valid(event)) return false;
    event->magic = 0;
    free(event);
    return true;
}

void ph_event_record(struct ph_event *event, struct ph_stream *stream)
{
    ph_host_cost(ph_spec()->call_cost_ns);
    pthread_mutex_lock(&ph_lock);
    implicit_order_locked(stream);
    prune_locked(&stream->head, now_locked());
    event->head = stream->head;
    merge_host_locked(&event->head, (int64_t)ph_spec()->launch_latency_ns);
    event->recorded = true;
    event->device = stream->device;
    pthread_mutex_unlock(&ph_lock);
    leave();
}

void ph_stream_wait(struct ph_stream *stream, const struct ph_event *event)
{
    ph_host_cost(ph_spec()->call_cost_ns);
    pthread_mutex_lock(&ph_lock);
    if (event->recorded) {
        struct ph_head before = stream->head;
        prune_locked(&before, now_locked());
        stream->head = before;
        bool stalls = waits_for_more_locked(&before, &event->head);
        merge_locked(&stream->head, &event->head);
        if (stalls) {
            merge_host_locked(&before, (int64_t)ph_spec()->launch_latency_ns);
            struct ph_head after = stream->head;
            merge_host_locked(&after, (int64_t)ph_spec()->launch_latency_ns);
            ph_pack_array(&pending_stalls, 3);
            ph_pack_uint(&pending_stalls, (uint64_t)stream->device);
            pack_head(&pending_stalls, &before);
            pack_head(&pending_stalls, &after);
            pending_stall_count++;
        }
        stream->used = true;
    }
    pthread_mutex_unlock(&ph_lock);
    leave();
}

/* Has `head` been reached at the caller's host clock? Decided here when the bounds decide it, else by the hub. */
static bool reached(const struct ph_head *head)
{
    bool observer = !me.chain; /* a thread that only ever polls is told what is known, whatever the clock says */
    pthread_mutex_lock(&ph_lock);
    if (!observer) advance_locked(ph_spec()->call_cost_ns);
    uint64_t now = now_locked();
    int decided = head_upper(head) <= now || (observer && head_upper(head) != UNKNOWN) ? 1 : !observer && head_lower(head) > now ? 0 : -1;
    if (decided >= 0) {
        pthread_mutex_unlock(&ph_lock);
        leave();
        return decided;
    }
    struct ph_pack body = {0};
    uint64_t req = ph_request_id();
    struct ph_head own = {0};
    if (!observer) merge_host_locked(&own, 0);
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, now);
    pack_extra_locked(&body);
    pack_head(&body, head);
    pack_head(&body, &own);
    if (!observer) atomic_store(&ph_page()->blocked, 1);
    ph_send(PH_QUERY, &body, 5);
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    bool ready = ph_read_int(&reply) != 0;
    ph_reply_free(&reply);
    pthread_mutex_lock(&ph_lock);
    for (int i = 0; i < head->count && !observer; i++) {
        struct bound *bound = bound_of(head->entry[i].node);
        uint64_t at_most = now - (uint64_t)(head->entry[i].lag + head->entry[i].work);
        if (ready && bound && at_most < bound->upper) bound->upper = at_most;
    }
    if (!observer) atomic_store(&ph_page()->blocked, 0);
    pthread_mutex_unlock(&ph_lock);
    leave();
    return ready;
}

bool ph_event_ready(const struct ph_event *event) { return !event->recorded || reached(&event->head); }

bool ph_stream_ready(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    implicit_order_locked(stream);
    struct ph_head head = stream->head;
    pthread_mutex_unlock(&ph_lock);
    return reached(&head);
}

bool ph_event_elapsed(const struct ph_event *start, const struct ph_event *end, float *milliseconds)
{
    pthread_mutex_lock(&ph_lock);
    uint64_t from = head_exact(&start->head, 0), to = head_exact(&end->head, 0);
    if (from == UNKNOWN || to == UNKNOWN) {
        struct ph_pack body = {0};
        uint64_t req = ph_request_id();
        ph_pack_uint(&body, req);
        ph_pack_uint(&body, now_locked());
        pack_extra_locked(&body);
        ph_pack_array(&body, 2);
        pack_head(&body, &start->head);
        pack_head(&body, &end->head);
        atomic_store(&ph_page()->blocked, 1);
        ph_send(PH_TIMES, &body, 4);
        pthread_mutex_unlock(&ph_lock);
        ph_pack_free(&body);
        struct ph_reply reply;
        ph_wait(req, &reply, -1);
        ph_read_array(&reply);
        from = (uint64_t)ph_read_int(&reply);
        to = (uint64_t)ph_read_int(&reply);
        ph_reply_free(&reply);
        pthread_mutex_lock(&ph_lock);
        atomic_store(&ph_page()->blocked, 0);
    }
    bool complete = from <= now_locked() && to <= now_locked();
    pthread_mutex_unlock(&ph_lock);
    leave();
    *milliseconds = (float)((double)(int64_t)(to - from) / 1e6);
    return complete;
}
