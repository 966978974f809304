/* graph.h - CUDA graphs: what a capture records, and what a launch of the graph does.
 *
 * Why it exists: work on a captured stream must not reach the timeline, whichever API issues it.
 * The work becomes an item of a graph instead. Each launch of the graph puts its items on the
 * timeline.
 *
 * Rule: an API file asks PH_CAPTURING(stream) before it puts anything on a stream. ph_lock guards
 * the state of captures. */
#ifndef PH_GRAPH_H
#define PH_GRAPH_H
#include "base/msgpack.h"
#include "time/timeline.h"
#include "work/signature.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { /* cudaError_t and CUresult, driver_types.h */
       PH_ILLEGAL_STATE = 401,
       PH_CAPTURE_UNSUPPORTED = 900,
       PH_CAPTURE_INVALIDATED = 901,
       PH_CAPTURE_MERGE = 902,
       PH_CAPTURE_UNMATCHED = 903,
       PH_CAPTURE_UNJOINED = 904,
       PH_CAPTURE_ISOLATION = 905,
       PH_CAPTURE_IMPLICIT = 906,
       PH_CAPTURED_EVENT = 907,
       PH_CAPTURE_WRONG_THREAD = 908
};
/* cudaGraphNodeType */
enum ph_graph_op_type {
    PH_GRAPH_OP_KERNEL,
    PH_GRAPH_OP_COPY,
    PH_GRAPH_OP_SET,
    PH_GRAPH_OP_HOST,
    PH_GRAPH_OP_CHILD,
    PH_GRAPH_OP_EMPTY,
    PH_GRAPH_OP_WAIT,
    PH_GRAPH_OP_RECORD
};
enum { PH_CAPTURE_GLOBAL, PH_CAPTURE_THREAD_LOCAL, PH_CAPTURE_RELAXED };

/* What an item does apart from taking GPU time: it moves values, communicates, or calls the job
 * back. Actions run in the order of capture. */
struct ph_action {
    void (*run)(void *data, struct ph_stream *stream);
    void (*release)(void *data); /* NULL: nothing to release */
    void *data;
};

struct ph_graph_op {
    enum ph_graph_op_type type;
    uint32_t index, lane; /* lane: index of its captured stream; 0: the origin */
    int device;
    bool awaited; /* an op of another lane, or the end of the graph, depends on it */
    struct ph_graph_ops before;
    struct ph_signature signature; /* of a kernel, a copy or a fill; without fields for other ops */
    struct ph_event *event;
    struct ph_action action;
};
struct ph_graph_item {
    struct ph_graph_op *op; /* NULL: the item only moves values */
    struct ph_action action;
};
struct ph_graph { /* unchanged once its capture has ended */
    int references;
    uint32_t count, room, lanes;
    struct ph_graph_item *item;
    struct ph_graph_ops ops, last; /* last: the origin's tails when the capture ended */
    int lane_device[64];
};
enum { PH_GRAPH_LANES = 64 };

struct ph_graph *ph_graph_new(void);
void ph_graph_keep(struct ph_graph *graph);
void ph_graph_drop(struct ph_graph *graph);
struct ph_graph_item *ph_graph_item(struct ph_graph *graph);
void ph_graph_ops_push(struct ph_graph_ops *set, struct ph_graph_op *op);
/* Adds `op` unless the set has it. The search is linear, so this is for the few ops that a stream
 * depends on. */
void ph_graph_ops_add(struct ph_graph_ops *set, struct ph_graph_op *op);
void ph_graph_ops_copy(struct ph_graph_ops *set, const struct ph_graph_ops *from);
void ph_graph_ops_clear(struct ph_graph_ops *set);

struct ph_exec;
struct ph_exec *ph_exec_new(struct ph_graph *graph);
void ph_exec_free(struct ph_exec *exec);
void ph_exec_launch(struct ph_exec *exec, struct ph_stream *stream);

/* ---- capture.c ---- */
extern _Atomic int ph_captures; /* captures under way in this process */
struct ph_capture;

int ph_capture_begin(struct ph_stream *stream, int mode);
int ph_capture_end(struct ph_stream *stream, struct ph_graph **graph);
/* 0: no capture, 1: active, 2: invalidated. Sets the other results only if there is a capture.
 * `tails` belongs to the stream. */
int ph_capture_status(struct ph_stream *stream, uint64_t *id, struct ph_graph **graph,
                      const struct ph_graph_ops **tails);
/* Call before a stream is destroyed. The stream can then no longer end or join its capture. */
void ph_capture_forget(struct ph_stream *stream);
int ph_capture_exchange_mode(int mode);

/* Call before work is put on a stream. 0: run the work; -1: capture it; else the error. */
int ph_capture_check(struct ph_stream *stream);
#define PH_CAPTURING(stream)                                                            \
    (__builtin_expect(atomic_load_explicit(&ph_captures, memory_order_relaxed) != 0, 0) \
         ? ph_capture_check(stream)                                                     \
         : 0)
/* Adds an op after the stream's present ops. `signature` may be NULL. Only after ph_capture_check
 * has returned -1. */
void ph_capture_op(struct ph_stream *stream, enum ph_graph_op_type type,
                   const struct ph_signature *signature, struct ph_event *event,
                   struct ph_action action);
/* Adds an item that moves or computes values. Items run in the order of the calls. */
void ph_capture_values(struct ph_stream *stream, struct ph_action action);
/* The same for event calls. Results as ph_capture_check's; -1: the capture has recorded the call.
 */
int ph_capture_record(struct ph_event *event, struct ph_stream *stream, bool external);
int ph_capture_wait(struct ph_stream *stream, struct ph_event *event, bool external);

/* Calls that are forbidden while captures are under way. 0: allowed; else the error, and the
 * affected captures are now invalid. */
/* a call that CUDA's documentation names potentially unsafe */
int ph_capture_forbids(void);
#define PH_UNSAFE()                                                                     \
    (__builtin_expect(atomic_load_explicit(&ph_captures, memory_order_relaxed) != 0, 0) \
         ? ph_capture_forbids()                                                         \
         : 0)
/* the host queries or waits for a whole device */
int ph_capture_forbids_device(int device);
int ph_capture_forbids_stream(struct ph_stream *stream);    /* ... a stream */
int ph_capture_forbids_event(const struct ph_event *event); /* ... an event */
#endif
