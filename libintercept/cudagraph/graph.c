/* cudagraph/graph.c - CUDA graphs as lists of items, and their launches.
 *
 * Why it exists: a launch is one host call. The GPU then works through the graph by itself, and an
 * op starts when everything that it depends on has ended. So a launch puts the ops on the timeline
 * while the host's clock stands still. Each op starts at the maximum of its predecessors' time
 * expressions, with the gap between a graph's kernels ([host] graph_gap of the GPU's file). Each
 * captured stream becomes a lane, which is a stream that nothing else sees. The first lane is the
 * stream that the graph is launched on.
 *
 * Rules: the items run in the order of capture, which respects every dependency. Launches of one
 * graph run one after another. */
#include "cudagraph/graph.h"
#include "backend.h"
#include "base/log.h"
#include "trace/trace_log.h"
#include "work/duration.h"
#include <stdlib.h>
#include <string.h>

/* ---- sets and graphs ---- */
static void *grown(void *array, uint32_t count, uint32_t *room, size_t bytes)
{
    if (count < *room) return array;
    *room = *room ? *room * 2 : 8;
    array = realloc(array, *room * bytes);
    if (!array) ph_die("out of host memory");
    return array;
}

void ph_graph_ops_add(struct ph_graph_ops *set, struct ph_graph_op *op)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->op[i] == op) return;
    ph_graph_ops_push(set, op);
}

void ph_graph_ops_push(struct ph_graph_ops *set, struct ph_graph_op *op)
{
    set->op = grown(set->op, set->count, &set->room, sizeof *set->op);
    set->op[set->count++] = op;
}

void ph_graph_ops_copy(struct ph_graph_ops *set, const struct ph_graph_ops *from)
{
    set->count = 0;
    for (uint32_t i = 0; i < from->count; i++) ph_graph_ops_add(set, from->op[i]);
}

void ph_graph_ops_clear(struct ph_graph_ops *set)
{
    free(set->op);
    *set = (struct ph_graph_ops){0};
}

struct ph_graph *ph_graph_new(void)
{
    struct ph_graph *graph = calloc(1, sizeof *graph);
    if (!graph) ph_die("out of host memory");
    graph->references = 1;
    graph->lanes = 1;
    return graph;
}

struct ph_graph_item *ph_graph_item(struct ph_graph *graph)
{
    graph->item = grown(graph->item, graph->count, &graph->room, sizeof *graph->item);
    graph->item[graph->count] = (struct ph_graph_item){0};
    return &graph->item[graph->count++];
}

void ph_graph_keep(struct ph_graph *graph)
{
    __atomic_fetch_add(&graph->references, 1, __ATOMIC_RELAXED);
}

void ph_graph_drop(struct ph_graph *graph)
{
    if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
    for (uint32_t i = 0; i < graph->count; i++) {
        struct ph_graph_item *item = &graph->item[i];
        if (item->action.release) item->action.release(item->action.data);
        if (!item->op) continue;
        ph_signature_free(&item->op->signature);
        ph_graph_ops_clear(&item->op->before);
        free(item->op);
    }
    free(graph->item);
    free(graph->ops.op); /* the ops were freed with their items */
    free(graph->last.op);
    free(graph);
}

/* ---- launches ---- */
enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };

struct ph_exec {
    pthread_mutex_t lock;
    struct ph_graph *graph;
    /* [0] is the stream of the launch, or `own` if that stream is on another device */
    struct ph_stream *lane[PH_GRAPH_LANES];
    struct ph_stream *own;
    /* by op: its end, if awaited. These are events because the hub must keep the vertices that
     * their expressions name. */
    struct ph_event **end;
    struct ph_event *done; /* the end of the last launch */
};

struct ph_exec *ph_exec_new(struct ph_graph *graph)
{
    struct ph_exec *exec = calloc(1, sizeof *exec);
    if (!exec) ph_die("out of host memory");
    exec->end = calloc(graph->ops.count + 1, sizeof *exec->end);
    if (!exec->end) ph_die("out of host memory");
    pthread_mutex_init(&exec->lock, NULL);
    ph_graph_keep(graph);
    exec->graph = graph;
    for (uint32_t i = 1; i < graph->lanes; i++)
        exec->lane[i] = ph_stream_create(graph->lane_device[i], NON_BLOCKING, 0);
    for (uint32_t i = 0; i < graph->ops.count; i++)
        if (graph->ops.op[i]->awaited) exec->end[i] = ph_event_create(DISABLE_TIMING);
    exec->done = ph_event_create(DISABLE_TIMING);
    return exec;
}

void ph_exec_free(struct ph_exec *exec)
{
    for (uint32_t i = 1; i < exec->graph->lanes; i++) ph_stream_destroy(exec->lane[i]);
    if (exec->own) ph_stream_destroy(exec->own);
    for (uint32_t i = 0; i < exec->graph->ops.count; i++)
        if (exec->end[i]) ph_event_destroy(exec->end[i]);
    ph_event_destroy(exec->done);
    ph_graph_drop(exec->graph);
    free(exec->end);
    free(exec);
}

static void mark_locked(struct ph_event *event, const struct ph_stream *stream)
{
    event->expr = stream->expr;
    event->position = ph_queue_position(stream);
    event->device = stream->device;
    event->recorded = true;
}

static void run_op(struct ph_exec *exec, struct ph_graph_op *op)
{
    struct ph_stream *stream = exec->lane[op->lane];
    pthread_mutex_lock(&ph_lock);
    for (uint32_t i = 0; i < op->before.count; i++)
        if (op->before.op[i]->lane != op->lane)
            ph_expr_merge(&stream->expr, &exec->end[op->before.op[i]->index]->expr);
    stream->used = true;
    pthread_mutex_unlock(&ph_lock);
    if (op->signature.count) {
        PH_TRACE(ph_signature_trace_replayed(&op->signature));
        /* looked up at each launch: a leader may have measured the work since the capture */
        ph_run(stream, ph_duration(&op->signature), op->signature.copies_inside);
    }
    if (op->type == PH_GRAPH_OP_RECORD) ph_event_record(op->event, stream);
    if (op->type == PH_GRAPH_OP_WAIT) ph_stream_wait(stream, op->event);
    if (op->type == PH_GRAPH_OP_KERNEL && op->signature.count)
        atomic_fetch_add_explicit(&ph_stats()->kernel_launches, 1, memory_order_relaxed);
}

/* All lanes start at the time expression of the stream that the graph is launched on. */
static void start_locked(struct ph_exec *exec, struct ph_stream *stream)
{
    ph_queue_wait_locked(stream, 1); /* a graph takes one queue slot, however many ops it has */
    ph_stream_order_locked(stream);
    ph_expr_prune(&stream->expr, ph_clock());
    if (exec->done->recorded) ph_expr_merge(&stream->expr, &exec->done->expr);
    stream->used = true;
    exec->lane[0] = exec->own ? exec->own : stream;
    for (uint32_t i = 0; i < exec->graph->lanes; i++) exec->lane[i]->expr = stream->expr;
}

static void finish_locked(struct ph_exec *exec, struct ph_stream *stream)
{
    const struct ph_graph_ops *last = &exec->graph->last;
    for (uint32_t i = 0; i < last->count; i++)
        if (exec->lane[last->op[i]->lane] != stream)
            ph_expr_merge(&stream->expr, &exec->end[last->op[i]->index]->expr);
    ph_queue_push_locked(stream, 1, 0, 0);
    mark_locked(exec->done, stream);
}

void ph_exec_launch(struct ph_exec *exec, struct ph_stream *stream)
{
    ph_host_call(PH_CALL_LAUNCH);
    uint64_t cost = ph_spec()->graph_launch_ns + exec->graph->ops.count * ph_spec()->graph_node_ns;
    ph_host_cost(cost > ph_spec()->call_cost[PH_CALL_LAUNCH]
                     ? cost - ph_spec()->call_cost[PH_CALL_LAUNCH]
                     : 0);
    PH_TRACE(ph_trace_call_begin("cudaGraphLaunch"));
    if (ph_backend.code_loaded) ph_backend.code_loaded(stream->device);
    pthread_mutex_lock(&exec->lock);
    if (stream->device != exec->graph->lane_device[0] && !exec->own)
        exec->own = ph_stream_create(exec->graph->lane_device[0], NON_BLOCKING, 0);
    ph_host_pause();
    ph_graph_launching(true);
    pthread_mutex_lock(&ph_lock);
    start_locked(exec, stream);
    pthread_mutex_unlock(&ph_lock);
    for (uint32_t i = 0; i < exec->graph->count; i++) {
        struct ph_graph_item *item = &exec->graph->item[i];
        struct ph_graph_op *op = item->op;
        if (op) run_op(exec, op);
        if (item->action.run)
            item->action.run(item->action.data, op ? exec->lane[op->lane] : stream);
        if (!op || !op->awaited) continue;
        pthread_mutex_lock(&ph_lock);
        mark_locked(exec->end[op->index], exec->lane[op->lane]);
        pthread_mutex_unlock(&ph_lock);
    }
    pthread_mutex_lock(&ph_lock);
    finish_locked(exec, stream);
    pthread_mutex_unlock(&ph_lock);
    ph_graph_launching(false);
    ph_host_resume();
    pthread_mutex_unlock(&exec->lock);
    PH_TRACE_END();
    ph_leave();
}
