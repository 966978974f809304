/* graph_api.c - stream capture and graphs in the runtime and the driver API, which share numbers
 * and handles.
 *
 * Why it exists: it translates the ABI into calls of cudagraph/. Graphs come from captures only.
 * Functions that build or change them op by op are refused (unsupported_*.gen.c), and so is what a
 * captured graph cannot hold here (memory allocation, other graphs). */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "trace/trace_log.h"
#include "cudagraph/graph.h"
#include "simulated/cuda/runtime.h"
#include "time/watchdog.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRAPH_MAGIC = 0x50484752, EXEC_MAGIC = 0x50484758 };

struct graph_handle { /* cudaGraph_t */
    uint32_t magic;
    struct ph_graph *graph;
};
struct exec_handle { /* cudaGraphExec_t */
    uint32_t magic;
    struct ph_exec *exec;
    unsigned long long flags;
};

static struct ph_graph *graph_of(const struct graph_handle *handle)
{
    return handle && handle->magic == GRAPH_MAGIC ? handle->graph : NULL;
}
static struct ph_exec *exec_of(const struct exec_handle *handle)
{
    return handle && handle->magic == EXEC_MAGIC ? handle->exec : NULL;
}

static struct graph_handle *make(struct ph_graph *graph)
{
    struct graph_handle *handle = malloc(sizeof *handle);
    if (!handle) ph_die("out of host memory");
    *handle = (struct graph_handle){GRAPH_MAGIC, graph};
    return handle;
}

/* A record or a wait that became part of a capture, or was refused. */
int ph_capture_called(enum ph_call call, const char *name, int answer)
{
    if (answer > 0) return ph_set_error(answer);
    ph_host_call(call);
    PH_TRACE(ph_trace_call(name));
    ph_leave();
    return CUDA_OK;
}

/* ---- capture ---- */
PH_API(int, cudaStreamBeginCapture, (void *handle, int mode))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    return ph_set_error(stream ? ph_capture_begin(stream, mode) : CUDA_INVALID_HANDLE);
}
PH_API(int, cudaStreamEndCapture, (void *handle, struct graph_handle **graph))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    struct ph_graph *built = NULL;
    int error = !stream  ? CUDA_INVALID_HANDLE
                : !graph ? CUDA_INVALID_VALUE
                         : ph_capture_end(stream, &built);
    if (graph) *graph = built ? make(built) : NULL;
    return ph_set_error(error);
}

static int capture_info(void *handle, int *status, unsigned long long *id,
                        struct graph_handle **graph, struct ph_graph_op ***dependencies,
                        const void **edges, size_t *count)
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    /* the job may look at this graph until the capture ends */
    static _Thread_local struct graph_handle building;
    struct ph_graph *built = NULL;
    const struct ph_graph_ops *tails = NULL;
    uint64_t number = 0;
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = PH_CAPTURING(stream);
    if (refused == PH_CAPTURE_IMPLICIT) return ph_set_error(refused);
    *status = refused ? ph_capture_status(stream, &number, &built, &tails) : 0;
    if (*status != 1) return CUDA_OK;
    building = (struct graph_handle){GRAPH_MAGIC, built};
    if (id) *id = number;
    if (graph) *graph = &building;
    if (dependencies) *dependencies = tails->op;
    if (edges) *edges = NULL;
    if (count) *count = tails->count;
    return CUDA_OK;
}
/* CUDA 12.3 has added edge data. CUDA 13 gives the newest form the plain name. */
PH_API_12(int, cudaStreamGetCaptureInfo, (void *stream, int *status, unsigned long long *id))
{
    return capture_info(stream, status, id, NULL, NULL, NULL, NULL);
}
PH_API(int, cudaStreamGetCaptureInfo_v2,
       (void *stream, int *status, unsigned long long *id, struct graph_handle **graph,
        struct ph_graph_op ***dependencies, size_t *count))
{
    return capture_info(stream, status, id, graph, dependencies, NULL, count);
}
PH_API(int, cudaStreamGetCaptureInfo_v3,
       (void *stream, int *status, unsigned long long *id, struct graph_handle **graph,
        struct ph_graph_op ***dependencies, const void **edges, size_t *count))
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}
PH_API_13(int, cudaStreamGetCaptureInfo,
          (void *stream, int *status, unsigned long long *id, struct graph_handle **graph,
           struct ph_graph_op ***dependencies, const void **edges, size_t *count))
{
    return capture_info(stream, status, id, graph, dependencies, edges, count);
}
PH_API(int, cudaStreamIsCapturing, (void *stream, int *status))
{
    return capture_info(stream, status, NULL, NULL, NULL, NULL, NULL);
}

PH_API(int, cudaThreadExchangeStreamCaptureMode, (int *mode))
{
    if (!mode || *mode < PH_CAPTURE_GLOBAL || *mode > PH_CAPTURE_RELAXED)
        return ph_set_error(CUDA_INVALID_VALUE);
    ph_watchdog_captures_locally(*mode == PH_CAPTURE_THREAD_LOCAL);
    *mode = ph_capture_exchange_mode(*mode);
    return CUDA_OK;
}

/* ---- graphs ---- */
PH_API(int, cudaGraphCreate, (struct graph_handle **graph, unsigned flags))
{
    if (!graph || flags) return ph_set_error(CUDA_INVALID_VALUE);
    *graph = make(ph_graph_new());
    return CUDA_OK;
}
PH_API(int, cudaGraphClone, (struct graph_handle **clone, struct graph_handle *graph))
{
    if (!clone || !graph_of(graph)) return ph_set_error(CUDA_INVALID_VALUE);
    ph_graph_keep(graph_of(graph)); /* it no longer changes */
    *clone = make(graph_of(graph));
    return CUDA_OK;
}
PH_API(int, cudaGraphDestroy, (struct graph_handle *graph))
{
    if (!graph_of(graph)) return ph_set_error(CUDA_INVALID_VALUE);
    ph_graph_drop(graph->graph);
    graph->magic = 0;
    free(graph);
    return CUDA_OK;
}

/* As in CUDA: without an array only the count is returned; unused elements of the array become
 * NULL. */
static int list_nodes(struct ph_graph_op *const *nodes, size_t there, struct ph_graph_op **into,
                      size_t *count)
{
    if (!count) return ph_set_error(CUDA_INVALID_VALUE);
    for (size_t i = 0; into && i < *count; i++) into[i] = i < there ? nodes[i] : NULL;
    if (!into || *count > there) *count = there;
    return CUDA_OK;
}

PH_API(int, cudaGraphGetNodes,
       (struct graph_handle *graph, struct ph_graph_op **nodes, size_t *count))
{
    struct ph_graph *of = graph_of(graph);
    return of ? list_nodes(of->ops.op, of->ops.count, nodes, count)
              : ph_set_error(CUDA_INVALID_VALUE);
}
PH_API(int, cudaGraphGetRootNodes,
       (struct graph_handle *graph, struct ph_graph_op **nodes, size_t *count))
{
    struct ph_graph *of = graph_of(graph);
    struct ph_graph_ops roots = {0};
    if (!of) return ph_set_error(CUDA_INVALID_VALUE);
    for (uint32_t i = 0; i < of->ops.count; i++)
        if (!of->ops.op[i]->before.count) ph_graph_ops_push(&roots, of->ops.op[i]);
    int error = list_nodes(roots.op, roots.count, nodes, count);
    ph_graph_ops_clear(&roots);
    return error;
}
/* Edge data belongs to programmatic launches, which captures here do not record. */
static int list_edges(struct graph_handle *graph, struct ph_graph_op **from,
                      struct ph_graph_op **to, size_t *count)
{
    struct ph_graph *of = graph_of(graph);
    struct ph_graph_ops first = {0}, second = {0};
    if (!of || !count || !from != !to) return ph_set_error(CUDA_INVALID_VALUE);
    for (uint32_t i = 0; i < of->ops.count; i++)
        for (uint32_t j = 0; j < of->ops.op[i]->before.count; j++) {
            ph_graph_ops_push(&first, of->ops.op[i]->before.op[j]);
            ph_graph_ops_push(&second, of->ops.op[i]);
        }
    size_t room = *count;
    int error = list_nodes(first.op, first.count, from, count);
    if (to) list_nodes(second.op, second.count, to, &room);
    ph_graph_ops_clear(&first);
    ph_graph_ops_clear(&second);
    return error;
}
PH_API_12(int, cudaGraphGetEdges,
          (struct graph_handle *graph, struct ph_graph_op **from, struct ph_graph_op **to,
           size_t *count))
{
    return list_edges(graph, from, to, count);
}
PH_API_13(int, cudaGraphGetEdges,
          (struct graph_handle *graph, struct ph_graph_op **from, struct ph_graph_op **to,
           void *edges, size_t *count))
{
    (void)edges;
    return list_edges(graph, from, to, count);
}
PH_API(int, cudaGraphGetEdges_v2, /* CUDA 12's */
       (struct graph_handle *graph, struct ph_graph_op **from, struct ph_graph_op **to, void *edges,
        size_t *count))
{
    (void)edges;
    return list_edges(graph, from, to, count);
}
PH_API(int, cudaGraphNodeGetType, (struct ph_graph_op *node, int *type))
{
    if (!node || !type) return ph_set_error(CUDA_INVALID_VALUE);
    *type = (int)node->type;
    return CUDA_OK;
}
static int list_before(struct ph_graph_op *node, struct ph_graph_op **nodes, size_t *count)
{
    return node ? list_nodes(node->before.op, node->before.count, nodes, count)
                : ph_set_error(CUDA_INVALID_VALUE);
}
PH_API_12(int, cudaGraphNodeGetDependencies,
          (struct ph_graph_op *node, struct ph_graph_op **nodes, size_t *count))
{
    return list_before(node, nodes, count);
}
PH_API_13(int, cudaGraphNodeGetDependencies,
          (struct ph_graph_op *node, struct ph_graph_op **nodes, void *edges, size_t *count))
{
    (void)edges;
    return list_before(node, nodes, count);
}
PH_API(int, cudaGraphNodeGetDependencies_v2, /* CUDA 12's */
       (struct ph_graph_op *node, struct ph_graph_op **nodes, void *edges, size_t *count))
{
    (void)edges;
    return list_before(node, nodes, count);
}

PH_API(int, cudaGraphDebugDotPrint, (struct graph_handle *graph, const char *path, unsigned flags))
{
    static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET",     "HOST",
                                        "GRAPH",  "EMPTY",  "EVENT_WAIT", "EVENT_RECORD"};
    struct ph_graph *of = graph_of(graph);
    FILE *file = of && path ? fopen(path, "w") : NULL;
    (void)flags; /* selects details to print; there are none */
    if (!file) return ph_set_error(CUDA_INVALID_VALUE);
    fprintf(file, "digraph dot {\n");
    for (uint32_t i = 0; i < of->ops.count; i++) {
        const struct ph_graph_op *node = of->ops.op[i];
        fprintf(file, "node_%u [label=\"%u %s\"];\n", i, i, names[node->type]);
        for (uint32_t j = 0; j < node->before.count; j++)
            fprintf(file, "node_%u -> node_%u;\n", node->before.op[j]->index, i);
    }
    fprintf(file, "}\n");
    return ph_set_error(fclose(file) == 0 ? CUDA_OK : CUDA_INVALID_VALUE);
}

/* ---- executable graphs ---- */
PH_API(int, cudaGraphInstantiateWithFlags,
       (struct exec_handle **exec, struct graph_handle *graph, unsigned long long flags))
{
    enum { AUTO_FREE = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, NODE_PRIORITY = 8 };
    if (!exec || !graph_of(graph) || flags & ~15ull) return ph_set_error(CUDA_INVALID_VALUE);
    if (flags & DEVICE_LAUNCH) {
        ph_unsupported("cudaGraphInstantiate (for launches by the device)");
        return ph_set_error(CUDA_NOT_SUPPORTED);
    }
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    /* it allocates device memory for the graph, so it costs about as much as an allocation */
    ph_host_call(PH_CALL_MALLOC);
    struct exec_handle *handle = malloc(sizeof *handle);
    if (!handle) ph_die("out of host memory");
    *handle = (struct exec_handle){EXEC_MAGIC, ph_exec_new(graph_of(graph)), flags};
    *exec = handle;
    return CUDA_OK;
}
PH_API(int, cudaGraphInstantiate,
       (struct exec_handle **exec, struct graph_handle *graph, unsigned long long flags))
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
PH_API(int, cudaGraphExecGetFlags, (struct exec_handle *exec, unsigned long long *flags))
{
    if (!exec_of(exec) || !flags) return ph_set_error(CUDA_INVALID_VALUE);
    *flags = exec->flags;
    return CUDA_OK;
}
PH_API(int, cudaGraphExecDestroy, (struct exec_handle *exec))
{
    if (!exec_of(exec)) return ph_set_error(CUDA_INVALID_VALUE);
    ph_exec_free(exec->exec);
    exec->magic = 0;
    free(exec);
    return CUDA_OK;
}

static int launch(struct exec_handle *exec, void *handle, bool runs)
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!exec_of(exec)) return ph_set_error(CUDA_INVALID_VALUE);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    int captured = PH_CAPTURING(stream);
    if (captured > 0) return ph_set_error(captured);
    if (captured) {
        ph_unsupported("cudaGraphLaunch (in a stream capture)");
        ph_capture_forbids_stream(stream);
        return ph_set_error(CUDA_NOT_SUPPORTED);
    }
    if (runs)
        ph_exec_launch(exec->exec, stream);
    else
        ph_host_call(PH_CALL_LAUNCH);
    return CUDA_OK;
}
PH_API(int, cudaGraphLaunch, (struct exec_handle *exec, void *stream))
{
    return launch(exec, stream, true);
}
PH_API(int, cudaGraphUpload, (struct exec_handle *exec, void *stream))
{
    return launch(exec, stream, false);
}

/* ---- user objects: what the job ties to the life of a graph ---- */
enum { OBJECT_MAGIC = 0x50484F42, NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

struct user_object { /* cudaUserObject_t */
    uint32_t magic;
    _Atomic unsigned references;
    void (*destroy)(void *);
    void *data;
};
struct held { /* a graph's references to one object */
    struct user_object *object;
    unsigned count;
};

static bool is_object(const struct user_object *object, unsigned count)
{
    return object && object->magic == OBJECT_MAGIC && count && count <= INT_MAX;
}

static void *destroy_object(void *pointer)
{
    struct user_object *object = pointer;
    object->destroy(object->data);
    free(object);
    return NULL;
}

/* The destructor runs on a thread of its own, as CUDA says: the caller may hold a lock that the
 * destructor takes, and a graph may be dropped under ph_lock. */
static void drop_references(struct user_object *object, unsigned count)
{
    pthread_attr_t detached;
    pthread_t thread;
    if (atomic_fetch_sub(&object->references, count) != count) return;
    object->magic = 0;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &detached, destroy_object, object)) destroy_object(object);
    pthread_attr_destroy(&detached);
}

static void release_held(void *data)
{
    struct held *held = data;
    drop_references(held->object, held->count);
    free(held);
}

PH_API(int, cudaUserObjectCreate,
       (struct user_object * *object, void *data, void (*destroy)(void *), unsigned count,
        unsigned flags))
{
    if (!object || !destroy || !count || count > INT_MAX || flags != NO_DESTRUCTOR_SYNC)
        return ph_set_error(CUDA_INVALID_VALUE);
    *object = malloc(sizeof **object);
    if (!*object) ph_die("out of host memory");
    **object = (struct user_object){OBJECT_MAGIC, count, destroy, data};
    return CUDA_OK;
}
PH_API(int, cudaUserObjectRetain, (struct user_object * object, unsigned count))
{
    if (!is_object(object, count)) return ph_set_error(CUDA_INVALID_VALUE);
    atomic_fetch_add(&object->references, count);
    return CUDA_OK;
}
PH_API(int, cudaUserObjectRelease, (struct user_object * object, unsigned count))
{
    if (!is_object(object, count)) return ph_set_error(CUDA_INVALID_VALUE);
    drop_references(object, count);
    return CUDA_OK;
}
PH_API(int, cudaGraphRetainUserObject,
       (struct graph_handle *graph, struct user_object *object, unsigned count, unsigned flags))
{
    if (!graph_of(graph) || !is_object(object, count) || flags & ~MOVE)
        return ph_set_error(CUDA_INVALID_VALUE);
    struct held *held = malloc(sizeof *held);
    if (!held) ph_die("out of host memory");
    *held = (struct held){object, count};
    if (!(flags & MOVE)) atomic_fetch_add(&object->references, count);
    pthread_mutex_lock(&ph_lock);
    ph_graph_item(graph_of(graph))->action = (struct ph_action){NULL, release_held, held};
    pthread_mutex_unlock(&ph_lock);
    return CUDA_OK;
}

/* ---- for the values library ---- */
PH_API(int, phantora_captures, (void))
{
    return atomic_load_explicit(&ph_captures, memory_order_relaxed);
}
PH_API(int, phantora_capture_check, (void *handle))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    return stream && stream->capture;
}
PH_API(void, phantora_capture_append,
       (void *handle, void (*run)(void *, struct ph_stream *), void (*release)(void *), void *data))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (stream && stream->capture)
        ph_capture_values(stream, (struct ph_action){run, release, data});
    else
        release(data);
}

/* ---- the driver's names ---- */
#define DRIVER(name, runtime, parameters, arguments) \
    PH_API(int, name, parameters) { return runtime arguments; }
DRIVER(cuStreamBeginCapture_v2, cudaStreamBeginCapture, (void *stream, int mode), (stream, mode))
DRIVER(cuStreamEndCapture, cudaStreamEndCapture, (void *stream, struct graph_handle **graph),
       (stream, graph))
DRIVER(cuStreamIsCapturing, cudaStreamIsCapturing, (void *stream, int *status), (stream, status))
DRIVER(cuStreamGetCaptureInfo, capture_info, (void *stream, int *status, unsigned long long *id),
       (stream, status, id, NULL, NULL, NULL, NULL))
DRIVER(cuStreamGetCaptureInfo_v2, capture_info,
       (void *stream, int *status, unsigned long long *id, struct graph_handle **graph,
        struct ph_graph_op ***dependencies, size_t *count),
       (stream, status, id, graph, dependencies, NULL, count))
DRIVER(cuStreamGetCaptureInfo_v3, capture_info,
       (void *stream, int *status, unsigned long long *id, struct graph_handle **graph,
        struct ph_graph_op ***dependencies, const void **edges, size_t *count),
       (stream, status, id, graph, dependencies, edges, count))
DRIVER(cuThreadExchangeStreamCaptureMode, cudaThreadExchangeStreamCaptureMode, (int *mode), (mode))
DRIVER(cuGraphCreate, cudaGraphCreate, (struct graph_handle **graph, unsigned flags),
       (graph, flags))
DRIVER(cuGraphClone, cudaGraphClone, (struct graph_handle **clone, struct graph_handle *graph),
       (clone, graph))
DRIVER(cuGraphDestroy, cudaGraphDestroy, (struct graph_handle *graph), (graph))
DRIVER(cuGraphGetNodes, cudaGraphGetNodes,
       (struct graph_handle *graph, struct ph_graph_op **nodes, size_t *count),
       (graph, nodes, count))
DRIVER(cuGraphGetRootNodes, cudaGraphGetRootNodes,
       (struct graph_handle *graph, struct ph_graph_op **nodes, size_t *count),
       (graph, nodes, count))
DRIVER(cuGraphGetEdges, list_edges,
       (struct graph_handle *graph, struct ph_graph_op **from, struct ph_graph_op **to,
        size_t *count),
       (graph, from, to, count))
DRIVER(cuGraphGetEdges_v2, cudaGraphGetEdges_v2,
       (struct graph_handle *graph, struct ph_graph_op **from, struct ph_graph_op **to, void *edges,
        size_t *count),
       (graph, from, to, edges, count))
DRIVER(cuGraphNodeGetType, cudaGraphNodeGetType, (struct ph_graph_op *node, int *type),
       (node, type))
DRIVER(cuGraphNodeGetDependencies, list_before,
       (struct ph_graph_op *node, struct ph_graph_op **nodes, size_t *count), (node, nodes, count))
DRIVER(cuGraphNodeGetDependencies_v2, cudaGraphNodeGetDependencies_v2,
       (struct ph_graph_op *node, struct ph_graph_op **nodes, void *edges, size_t *count),
       (node, nodes, edges, count))
DRIVER(cuGraphDebugDotPrint, cudaGraphDebugDotPrint,
       (struct graph_handle *graph, const char *path, unsigned flags), (graph, path, flags))
DRIVER(cuGraphInstantiateWithFlags, cudaGraphInstantiateWithFlags,
       (struct exec_handle **exec, struct graph_handle *graph, unsigned long long flags),
       (exec, graph, flags))
DRIVER(cuGraphExecGetFlags, cudaGraphExecGetFlags,
       (struct exec_handle *exec, unsigned long long *flags), (exec, flags))
DRIVER(cuGraphExecDestroy, cudaGraphExecDestroy, (struct exec_handle *exec), (exec))
DRIVER(cuGraphLaunch, cudaGraphLaunch, (struct exec_handle *exec, void *stream), (exec, stream))
DRIVER(cuGraphUpload, cudaGraphUpload, (struct exec_handle *exec, void *stream), (exec, stream))
DRIVER(cuUserObjectCreate, cudaUserObjectCreate,
       (struct user_object * *object, void *data, void (*destroy)(void *), unsigned count,
        unsigned flags),
       (object, data, destroy, count, flags))
DRIVER(cuUserObjectRetain, cudaUserObjectRetain, (struct user_object * object, unsigned count),
       (object, count))
DRIVER(cuUserObjectRelease, cudaUserObjectRelease, (struct user_object * object, unsigned count),
       (object, count))
DRIVER(cuGraphRetainUserObject, cudaGraphRetainUserObject,
       (struct graph_handle *graph, struct user_object *object, unsigned count, unsigned flags),
       (graph, object, count, flags))
