/* time/timeline.h - streams and events, and work on them. */
#ifndef PH_TIMELINE_H
#define PH_TIMELINE_H
#include "backend.h"
#include "base/device.h"
#include "link/connection.h"
#include "time/expression.h"
#include "time/host_clock.h"
#include "time/launch_queue.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What cudagraph/ keeps on streams and events; here it is only carried. */
struct ph_capture;
struct ph_graph_op;
struct ph_graph_ops { /* a set, in the order in which it was made */
    uint32_t count, room;
    struct ph_graph_op **op;
};

struct ph_queue; /* time/launch_queue.c */
struct ph_stream {
    uint32_t magic;
    int device, priority;
    unsigned flags;
    uint64_t id, busy_ns, last_launch; /* last_launch: vertex of the last communication on it */
    int64_t position; /* what its works take at least, one after the other, gaps included */
    struct ph_stream_position after; /* of another stream, which its expression follows */
    struct ph_queue *queue;
    bool used;
    struct ph_expr expr;
    struct ph_capture *capture; /* NULL: none */
    struct ph_graph_ops tails;  /* of it: what this stream's next vertex depends on */
    uint32_t lane;
    struct ph_stream *next;
};

struct ph_event {
    uint32_t magic;
    unsigned flags;
    int device;
    bool recorded;
    struct ph_stream_position position;
    struct ph_expr expr;
    uint64_t captured;             /* the capture that it was last recorded in; 0: none */
    struct ph_graph_ops tails;     /* what waiting for it depends on there */
    struct ph_event *next, **link; /* all events, for the vertices that they still name */
    void *shared;  /* simulated/memory/ipc.c: what other processes see of it; NULL: nothing */
    bool imported; /* another process records it */
    char file[32];
};

struct ph_time { /* of a piece of GPU work */
    uint64_t duration_ns;
    uint32_t source;              /* enum ph_source */
    uint32_t contention_permille; /* how much longer beside communication */
    enum ph_bound_by bound_by;
    uint32_t queue_slots; /* slots of the launch queue, as in ph_kernel_table_slot; 0: none */
};

void ph_timeline_start(void); /* the process joins the run */

/* ---- every function takes ph_lock itself unless its name ends in _locked ---- */
struct ph_stream *ph_stream_create(int device, unsigned flags, int priority);
bool ph_stream_destroy(struct ph_stream *stream);
/* the stream that a handle of the job's means; NULL: none */
static inline struct ph_stream *ph_stream_resolve(void *handle)
{
    return ph_backend.stream(handle);
}
bool ph_stream_valid(const struct ph_stream *stream);
struct ph_stream *ph_stream_default(void); /* of this thread's device */
struct ph_event *ph_event_create(unsigned flags);
bool ph_event_destroy(struct ph_event *event);
bool ph_event_valid(const struct ph_event *event);
void ph_event_record(struct ph_event *event, struct ph_stream *stream);
void ph_stream_wait(struct ph_stream *stream, const struct ph_event *event);
bool ph_event_ready(const struct ph_event *event);
bool ph_stream_ready(struct ph_stream *stream);
void ph_event_synchronize(const struct ph_event *event);
void ph_stream_synchronize(struct ph_stream *stream);
void ph_device_synchronize(int device);
bool ph_event_elapsed(const struct ph_event *start, const struct ph_event *end,
                      float *milliseconds);
void ph_run(struct ph_stream *stream, struct ph_time time); /* GPU work of known length */
/* its simulated time; asks the hub where others decide it */
uint64_t ph_event_moment(const struct ph_event *event);
/* This thread launches a graph: what is put on streams until `on` is false has the gaps of a graph,
 * and takes no place in the launch queue. */
void ph_graph_launching(bool on);
bool ph_replaying(void); /* ... it does */
/* A collective launch: sends OPS and leaves its end vertex as the stream's expr. `ops` is count
 * packed operations. */
uint64_t ph_communicate(struct ph_stream *stream, uint64_t comm, const struct ph_pack *ops,
                        uint32_t count);
/* A host-blocking request whose answer is an anchor (COMM_INIT, COMM_SPLIT): `rest` holds `fields`
 * packed values; the reply's values before the time go to `answer`. */
void ph_rendezvous(enum ph_message type, const struct ph_pack *rest, uint32_t fields,
                   int64_t *answer, int answers);
/* CUPTI's number of the stream, for the trace */
uint32_t ph_stream_trace_number(const struct ph_stream *stream);

/* ---- with ph_lock held ---- */
void ph_run_locked(struct ph_stream *stream, struct ph_time time);
bool ph_stream_is_legacy(const struct ph_stream *stream);
/* the legacy stream and blocking streams wait for each other */
void ph_stream_order_locked(struct ph_stream *stream);
/* asks where an open clock is; lets go of ph_lock meanwhile */
void ph_host_settle_locked(void);
#endif
