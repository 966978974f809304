/* cudagraph/graph.c - graphs as lists of steps, and a launch of one.
 *
 * Why it exists: a launch is one call of the host, and then the GPU goes through the graph by
 * itself: a node starts when all that it depends on has ended. So a launch puts the nodes on the
 * timeline with the host's clock standing still, each at the maximum of the heads of its
 * predecessors, with the gap that kernels of a graph have ([host] graph_gap of the GPU's file). A
 * captured stream becomes a lane: a stream that nobody else sees; the first lane is the stream that
 * the graph is launched in.
 *
 * Rules: the steps run in the order of capture, which no dependency goes against; launches of one
 * graph follow one another. */
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

void ph_nodes_add(struct ph_nodes *set, struct ph_node *node)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->node[i] == node) return;
    ph_nodes_push(set, node);
}

void ph_nodes_push(struct ph_nodes *set, struct ph_node *node)
{
    set->node = grown(set->node, set->count, &set->room, sizeof *set->node);
    set->node[set->count++] = node;
}

void ph_nodes_copy(struct ph_nodes *set, const struct ph_nodes *from)
{
    set->count = 0;
    for (uint32_t i = 0; i < from->count; i++) ph_nodes_add(set, from->node[i]);
}

void ph_nodes_clear(struct ph_nodes *set)
{
    free(set->node);
    *set = (struct ph_nodes){0};
}

struct ph_graph *ph_graph_new(void)
{
    struct ph_graph *graph = calloc(1, sizeof *graph);
    if (!graph) ph_die("out of host memory");
    graph->references = 1;
    graph->lanes = 1;
    return graph;
}

struct ph_step *ph_graph_step(struct ph_graph *graph)
{
    graph->step = grown(graph->step, graph->count, &graph->room, sizeof *graph->step);
    graph->step[graph->count] = (struct ph_step){0};
    return &graph->step[graph->count++];
}

void ph_graph_keep(struct ph_graph *graph)
{
    __atomic_fetch_add(&graph->references, 1, __ATOMIC_RELAXED);
}

void ph_graph_drop(struct ph_graph *graph)
{
    if (!graph || __atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
    for (uint32_t i = 0; i < graph->count; i++) {
        struct ph_step *step = &graph->step[i];
        if (step->action.release) step->action.release(step->action.data);
        if (!step->node) continue;
        ph_signature_free(&step->node->signature);
        ph_nodes_clear(&step->node->before);
        free(step->node);
    }
    free(graph->step);
    free(graph->nodes.node); /* the nodes themselves have gone with their steps */
    free(graph->last.node);
    free(graph);
}

/* ---- launches ---- */
enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };

struct ph_exec {
    pthread_mutex_t lock;
    struct ph_graph *graph;
    /* [0] is the launch's, or `own` if that is on another device */
    struct ph_stream *lane[PH_GRAPH_LANES];
    struct ph_stream *own;
    /* by node: where it ended, if it is awaited; events, because what they name the hub must keep
     */
    struct ph_event **end;
    struct ph_event *done; /* the last launch */
};

struct ph_exec *ph_exec_new(struct ph_graph *graph)
{
    struct ph_exec *exec = calloc(1, sizeof *exec);
    if (!exec) ph_die("out of host memory");
    exec->end = calloc(graph->nodes.count + 1, sizeof *exec->end);
    if (!exec->end) ph_die("out of host memory");
    pthread_mutex_init(&exec->lock, NULL);
    ph_graph_keep(graph);
    exec->graph = graph;
    for (uint32_t i = 1; i < graph->lanes; i++)
        exec->lane[i] = ph_stream_create(graph->lane_device[i], NON_BLOCKING, 0);
    for (uint32_t i = 0; i < graph->nodes.count; i++)
        if (graph->nodes.node[i]->awaited) exec->end[i] = ph_event_create(DISABLE_TIMING);
    exec->done = ph_event_create(DISABLE_TIMING);
    return exec;
}

void ph_exec_free(struct ph_exec *exec)
{
    for (uint32_t i = 1; i < exec->graph->lanes; i++) ph_stream_destroy(exec->lane[i]);
    if (exec->own) ph_stream_destroy(exec->own);
    for (uint32_t i = 0; i < exec->graph->nodes.count; i++)
        if (exec->end[i]) ph_event_destroy(exec->end[i]);
    ph_event_destroy(exec->done);
    ph_graph_drop(exec->graph);
    free(exec->end);
    free(exec);
}

static void mark_locked(struct ph_event *event, const struct ph_stream *stream)
{
    event->head = stream->head;
    event->place = ph_queue_place(stream);
    event->device = stream->device;
    event->recorded = true;
}

static void run_node(struct ph_exec *exec, struct ph_node *node)
{
    struct ph_stream *stream = exec->lane[node->lane];
    pthread_mutex_lock(&ph_lock);
    for (uint32_t i = 0; i < node->before.count; i++)
        if (node->before.node[i]->lane != node->lane)
            ph_head_merge(&stream->head, &exec->end[node->before.node[i]->index]->head);
    stream->used = true;
    pthread_mutex_unlock(&ph_lock);
    if (node->signature.count) {
        PH_TRACE(ph_signature_trace_replayed(&node->signature));
        /* not what it was at capture: a leader may know better by now */
        ph_run(stream, ph_duration(&node->signature));
    }
    if (node->type == PH_NODE_RECORD) ph_event_record(node->event, stream);
    if (node->type == PH_NODE_WAIT) ph_stream_wait(stream, node->event);
    if (node->type == PH_NODE_KERNEL && node->signature.count)
        atomic_fetch_add_explicit(&ph_stats()->kernel_launches, 1, memory_order_relaxed);
}

/* All lanes start where the stream is that the graph is launched in. */
static void start_locked(struct ph_exec *exec, struct ph_stream *stream)
{
    ph_queue_wait_locked(stream, 1); /* a graph is one work, however many nodes it has */
    ph_stream_order_locked(stream);
    ph_head_prune(&stream->head, ph_clock());
    if (exec->done->recorded) ph_head_merge(&stream->head, &exec->done->head);
    stream->used = true;
    exec->lane[0] = exec->own ? exec->own : stream;
    for (uint32_t i = 0; i < exec->graph->lanes; i++) exec->lane[i]->head = stream->head;
}

static void finish_locked(struct ph_exec *exec, struct ph_stream *stream)
{
    const struct ph_nodes *last = &exec->graph->last;
    for (uint32_t i = 0; i < last->count; i++)
        if (exec->lane[last->node[i]->lane] != stream)
            ph_head_merge(&stream->head, &exec->end[last->node[i]->index]->head);
    ph_queue_push_locked(stream, 1, 0, 0);
    mark_locked(exec->done, stream);
}

void ph_exec_launch(struct ph_exec *exec, struct ph_stream *stream)
{
    ph_host_call(PH_CALL_LAUNCH);
    uint64_t cost =
        ph_spec()->graph_launch_ns + exec->graph->nodes.count * ph_spec()->graph_node_ns;
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
        struct ph_step *step = &exec->graph->step[i];
        struct ph_node *node = step->node;
        if (node) run_node(exec, node);
        if (step->action.run)
            step->action.run(step->action.data, node ? exec->lane[node->lane] : stream);
        if (!node || !node->awaited) continue;
        pthread_mutex_lock(&ph_lock);
        mark_locked(exec->end[node->index], exec->lane[node->lane]);
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
