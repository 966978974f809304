/* cudagraph/capture.c - stream captures: which streams take part, which calls are forbidden
 * meanwhile, and what a capture records.
 *
 * Why it exists: the driver's error codes tell PyTorch what a job does wrong in a capture. A job
 * that works in the simulation must also work on a GPU, so the codes must be the same. The rules
 * are those of the CUDA programming guide ("Creating a graph using stream capture": cross-stream
 * dependencies, prohibited and unhandled operations, invalidation) and of
 * cudaThreadExchangeStreamCaptureMode's page.
 *
 * Rule: ph_lock guards everything here. Only streams and events refer to a capture. */
#include "cudagraph/graph.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/threads.h"
#include "work/signature.h"
#include <stdlib.h>

enum { NON_BLOCKING = 1 };

struct ph_capture {
    uint64_t id;
    int mode, thread;
    bool invalid;
    struct ph_graph *graph;
    struct ph_stream *origin, *lane[PH_GRAPH_LANES]; /* NULL: destroyed */
    struct ph_capture *next;
};

_Atomic int ph_captures;
static struct ph_capture *captures;
static uint64_t next_id = 1;
static _Thread_local int thread_mode; /* PH_CAPTURE_GLOBAL */

int ph_capture_exchange_mode(int mode)
{
    int before = thread_mode;
    thread_mode = mode;
    return before;
}

static void forget(void)
{
    captures = NULL;
    atomic_store(&ph_captures, 0);
}

/* ---- begin and end ---- */
static bool join_locked(struct ph_capture *capture, struct ph_stream *stream)
{
    uint32_t lane = 0;
    while (lane < capture->graph->lanes && capture->lane[lane] != stream) lane++;
    if (lane == PH_GRAPH_LANES) return false;
    if (lane == capture->graph->lanes) capture->graph->lanes++;
    capture->graph->lane_device[lane] = stream->device;
    capture->lane[lane] = stream;
    stream->capture = capture;
    stream->lane = lane;
    return true;
}

int ph_capture_begin(struct ph_stream *stream, int mode)
{
    if (mode < PH_CAPTURE_GLOBAL || mode > PH_CAPTURE_RELAXED) return 1;
    pthread_mutex_lock(&ph_lock);
    int error = stream->capture               ? PH_ILLEGAL_STATE
                : ph_stream_is_legacy(stream) ? PH_CAPTURE_UNSUPPORTED
                                              : 0;
    if (!error) {
        struct ph_capture *capture = calloc(1, sizeof *capture);
        if (!capture) ph_die("out of host memory");
        *capture = (struct ph_capture){.id = next_id++,
                                       .mode = mode,
                                       .thread = ph_thread_id(),
                                       .graph = ph_graph_new(),
                                       .origin = stream,
                                       .next = captures};
        captures = capture;
        ph_forget_in_child(forget);
        capture->graph->lanes = 0;
        join_locked(capture, stream);
        atomic_fetch_add(&ph_captures, 1);
    }
    pthread_mutex_unlock(&ph_lock);
    return error;
}

/* Whether the origin's present tails depend on every op of the capture. They do once each forked
 * stream has been joined. */
static bool joined_locked(const struct ph_capture *capture)
{
    const struct ph_graph *graph = capture->graph;
    uint32_t reached = 0, count = graph->ops.count;
    if (!count) return true;
    unsigned char *seen = calloc(count, 1);
    struct ph_graph_op **stack = malloc(count * sizeof *stack);
    if (!seen || !stack) ph_die("out of host memory");
    uint32_t depth = 0;
    for (uint32_t i = 0; i < capture->origin->tails.count; i++) {
        seen[capture->origin->tails.op[i]->index] = 1;
        stack[depth++] = capture->origin->tails.op[i];
    }
    while (depth) {
        struct ph_graph_op *op = stack[--depth];
        reached++;
        for (uint32_t i = 0; i < op->before.count; i++)
            if (!seen[op->before.op[i]->index]) {
                seen[op->before.op[i]->index] = 1;
                stack[depth++] = op->before.op[i];
            }
    }
    free(seen);
    free(stack);
    return reached == count;
}

static void leave_locked(struct ph_capture *capture)
{
    for (uint32_t i = 0; i < capture->graph->lanes; i++)
        if (capture->lane[i]) {
            capture->lane[i]->capture = NULL;
            ph_graph_ops_clear(&capture->lane[i]->tails);
        }
    for (struct ph_capture **link = &captures; *link; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    atomic_fetch_sub(&ph_captures, 1);
    free(capture);
}

int ph_capture_end(struct ph_stream *stream, struct ph_graph **graph)
{
    int error = 0;
    *graph = NULL;
    pthread_mutex_lock(&ph_lock);
    struct ph_capture *capture = stream->capture;
    if (!capture)
        error = PH_ILLEGAL_STATE;
    else if (capture->origin != stream)
        error = PH_CAPTURE_UNMATCHED, capture->invalid = true;
    else if (capture->mode != PH_CAPTURE_RELAXED && capture->thread != ph_thread_id())
        error = PH_CAPTURE_WRONG_THREAD, capture->invalid = true;
    else {
        error = capture->invalid         ? PH_CAPTURE_INVALIDATED
                : joined_locked(capture) ? 0
                                         : PH_CAPTURE_UNJOINED;
        struct ph_graph *built = capture->graph;
        ph_graph_ops_copy(&built->last, &stream->tails);
        for (uint32_t i = 0; i < built->last.count; i++) built->last.op[i]->awaited = true;
        leave_locked(capture);
        if (error)
            ph_graph_drop(built);
        else
            *graph = built;
    }
    pthread_mutex_unlock(&ph_lock);
    return error;
}

int ph_capture_status(struct ph_stream *stream, uint64_t *id, struct ph_graph **graph,
                      const struct ph_graph_ops **tails)
{
    pthread_mutex_lock(&ph_lock);
    struct ph_capture *capture = stream->capture;
    if (capture) *id = capture->id, *graph = capture->graph, *tails = &stream->tails;
    int status = !capture ? 0 : capture->invalid ? 2 : 1;
    pthread_mutex_unlock(&ph_lock);
    return status;
}

void ph_capture_forget(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    struct ph_capture *capture = stream->capture;
    if (capture && capture->origin == stream) {
        struct ph_graph *graph = capture->graph;
        leave_locked(capture);
        ph_graph_drop(graph);
    } else if (capture) {
        capture->lane[stream->lane] = NULL;
        capture->invalid = true; /* this stream can no longer be joined */
        stream->capture = NULL;
        ph_graph_ops_clear(&stream->tails);
    }
    pthread_mutex_unlock(&ph_lock);
}

/* ---- what a capture records ---- */
/* The legacy stream waits for every blocking stream. A captured stream cannot be waited for, so the
 * wait invalidates its capture. */
static int implicit_locked(int device)
{
    int error = 0;
    for (struct ph_capture *capture = captures; capture; capture = capture->next)
        for (uint32_t i = 0; i < capture->graph->lanes; i++) {
            struct ph_stream *stream = capture->lane[i];
            if (!stream || stream->device != device || (stream->flags & NON_BLOCKING)) continue;
            capture->invalid = true;
            error = PH_CAPTURE_IMPLICIT;
        }
    return error;
}

static int check_locked(struct ph_stream *stream)
{
    if (stream->capture) return stream->capture->invalid ? PH_CAPTURE_INVALIDATED : -1;
    return ph_stream_is_legacy(stream) ? implicit_locked(stream->device) : 0;
}

int ph_capture_check(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    int answer = check_locked(stream);
    pthread_mutex_unlock(&ph_lock);
    return answer;
}

static struct ph_graph_op *op_locked(struct ph_stream *stream, enum ph_graph_op_type type)
{
    struct ph_graph *graph = stream->capture->graph;
    struct ph_graph_op *op = calloc(1, sizeof *op);
    if (!op) ph_die("out of host memory");
    op->type = type;
    op->index = graph->ops.count;
    op->lane = stream->lane;
    op->device = stream->device;
    ph_graph_ops_copy(&op->before, &stream->tails);
    for (uint32_t i = 0; i < op->before.count; i++)
        if (op->before.op[i]->lane != op->lane) op->before.op[i]->awaited = true;
    ph_graph_ops_push(&graph->ops, op);
    stream->tails.count = 0;
    ph_graph_ops_add(&stream->tails, op);
    ph_graph_item(graph)->op = op;
    return op;
}

static void action_locked(struct ph_graph *graph, struct ph_action action)
{
    graph->item[graph->count - 1].action = action;
}

void ph_capture_op(struct ph_stream *stream, enum ph_graph_op_type type,
                   const struct ph_signature *signature, struct ph_event *event,
                   struct ph_action action)
{
    pthread_mutex_lock(&ph_lock);
    if (check_locked(stream) != -1) { /* another thread has invalidated the capture meanwhile */
        pthread_mutex_unlock(&ph_lock);
        if (action.release) action.release(action.data);
        return;
    }
    struct ph_graph_op *op = op_locked(stream, type);
    op->event = event;
    if (signature) ph_signature_copy(&op->signature, signature);
    action_locked(stream->capture->graph, action);
    pthread_mutex_unlock(&ph_lock);
}

void ph_capture_values(struct ph_stream *stream, struct ph_action action)
{
    pthread_mutex_lock(&ph_lock);
    bool captured = check_locked(stream) == -1;
    if (captured) ph_graph_item(stream->capture->graph)->action = action;
    pthread_mutex_unlock(&ph_lock);
    if (!captured && action.release) action.release(action.data);
}

int ph_capture_record(struct ph_event *event, struct ph_stream *stream, bool external)
{
    pthread_mutex_lock(&ph_lock);
    int answer = check_locked(stream);
    if (answer == -1 && external) {
        op_locked(stream, PH_GRAPH_OP_RECORD)->event = event;
    } else if (answer == -1) {
        event->captured = stream->capture->id;
        ph_graph_ops_copy(&event->tails, &stream->tails);
    } else if (answer == 0) {
        event->captured = 0;
    }
    pthread_mutex_unlock(&ph_lock);
    return answer;
}

static struct ph_capture *find_locked(uint64_t id)
{
    struct ph_capture *capture = captures;
    while (capture && capture->id != id) capture = capture->next;
    return capture;
}

/* A stream that waits for an event of a capture joins that capture. */
static int wait_captured_locked(struct ph_stream *stream, const struct ph_event *event)
{
    struct ph_capture *capture = find_locked(event->captured);
    /* its capture is over; the work before the event was recorded but never executed */
    if (!capture) return PH_CAPTURED_EVENT;
    if (capture->invalid) return PH_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalid = capture->invalid = true;
        return PH_CAPTURE_MERGE;
    }
    if (!stream->capture && ph_stream_is_legacy(stream)) {
        capture->invalid = true;
        return PH_CAPTURE_IMPLICIT;
    }
    if (!stream->capture && !join_locked(capture, stream)) {
        ph_unsupported("a stream capture of more than 64 streams");
        capture->invalid = true;
        return PH_CAPTURE_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < event->tails.count; i++)
        ph_graph_ops_add(&stream->tails, event->tails.op[i]);
    return -1;
}

int ph_capture_wait(struct ph_stream *stream, struct ph_event *event, bool external)
{
    pthread_mutex_lock(&ph_lock);
    int answer = stream->capture ? check_locked(stream) : 0;
    if (answer == -1 && external) {
        op_locked(stream, PH_GRAPH_OP_WAIT)->event = event;
    } else if (answer <= 0 && event->captured) {
        answer = wait_captured_locked(stream, event);
    } else if (answer == -1 && event->recorded) {
        stream->capture->invalid = true;
        answer = PH_CAPTURE_ISOLATION;
    }
    pthread_mutex_unlock(&ph_lock);
    return answer;
}

/* ---- what is forbidden during a capture ---- */
int ph_capture_forbids(void)
{
    int error = 0, thread = ph_thread_id();
    if (thread_mode == PH_CAPTURE_RELAXED) return 0;
    pthread_mutex_lock(&ph_lock);
    for (struct ph_capture *capture = captures; capture; capture = capture->next) {
        bool own = capture->thread == thread && capture->mode != PH_CAPTURE_RELAXED;
        if (!own && (thread_mode != PH_CAPTURE_GLOBAL || capture->mode != PH_CAPTURE_GLOBAL))
            continue;
        capture->invalid = true;
        error = PH_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&ph_lock);
    return error;
}

int ph_capture_forbids_device(int device)
{
    int error = 0;
    pthread_mutex_lock(&ph_lock);
    for (struct ph_capture *capture = captures; capture; capture = capture->next)
        for (uint32_t i = 0; i < capture->graph->lanes; i++)
            if (capture->lane[i] && capture->lane[i]->device == device) {
                capture->invalid = true;
                error = PH_CAPTURE_UNSUPPORTED;
            }
    pthread_mutex_unlock(&ph_lock);
    return error;
}

int ph_capture_forbids_stream(struct ph_stream *stream)
{
    pthread_mutex_lock(&ph_lock);
    int error = 0;
    if (stream->capture) {
        error = stream->capture->invalid ? PH_CAPTURE_INVALIDATED : PH_CAPTURE_UNSUPPORTED;
        stream->capture->invalid = true;
    } else if (ph_stream_is_legacy(stream)) {
        error = implicit_locked(stream->device);
    }
    pthread_mutex_unlock(&ph_lock);
    return error;
}

int ph_capture_forbids_event(const struct ph_event *event)
{
    if (!event->captured) return event->recorded ? ph_capture_forbids() : 0;
    pthread_mutex_lock(&ph_lock);
    struct ph_capture *capture = find_locked(event->captured);
    if (capture) capture->invalid = true;
    pthread_mutex_unlock(&ph_lock);
    return PH_CAPTURED_EVENT;
}
