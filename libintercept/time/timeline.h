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

/* State of cudagraph/ on streams and events. This layer only carries it. */
struct ph_capture;
struct ph_graph_op;
struct ph_graph_ops { /* a set, in insertion order */
    uint32_t count, room;
    struct ph_graph_op **op;
};

struct ph_queue;  /* time/launch_queue.c */
struct ph_beside; /* time/beside.c */
struct ph_stream {
    uint32_t magic;
    int device, priority;
    unsigned flags;
    /* last_launch: end vertex of the stream's last communication; last_cut: vertex that its
     * expression last was cut at */
    uint64_t id, busy_ns, last_launch, last_cut;
    uint64_t kernel_begin; /* before which its last kernel does not begin */
    uint32_t kernels;      /* since the last cut */
    int64_t position;      /* stream position: least time of its work in sequence, gaps included */
    /* position in another stream that this stream's expression follows */
    struct ph_stream_position after;
    struct ph_queue *queue;
    bool used;
    struct ph_expr expr;
    struct ph_capture *capture; /* NULL: none */
    struct ph_graph_ops tails;  /* ops of the capture that this stream's next op depends on */
    uint32_t lane;
    _Atomic uint64_t put_off_ns; /* time/watchdog.h */
    struct ph_stream *next;
};

enum { PH_EVENT_DISABLE_TIMING = 2 }; /* as CUDA's flag */

struct ph_event {
    uint32_t magic;
    unsigned flags;
    int device;
    _Atomic bool recorded;       /* set under ph_lock */
    _Atomic uint64_t put_off_ns; /* time/watchdog.h */
    struct ph_stream_position position;
    struct ph_expr expr;
    /* the capture in which it was last recorded; 0: none */
    uint64_t captured;
    struct ph_graph_ops tails; /* ops of that capture that a wait for it depends on */
    /* list of all events, to find the vertices that they still name */
    struct ph_event *next, **link;
    /* simulated/memory/ipc.c: its state as shared with other processes; NULL: not shared */
    void *_Atomic shared;
    bool imported; /* another process records it */
    char file[32];
};

struct ph_time { /* the time of a piece of GPU work */
    uint64_t duration_ns;
    uint32_t source;              /* enum ph_source */
    uint32_t contention_permille; /* how much longer when communication overlaps it */
    enum ph_bound_by bound_by;
    uint32_t queue_slots; /* launch-queue slots, as in ph_kernel_table_slot; 0: none */
    bool elsewhere;       /* recorded under other library versions than the job's */
    enum ph_kernel_class class;
    enum ph_precision precision;
    uint64_t flop; /* of its products, as in ph_kernel_table_slot */
    bool halved;   /* a causal mask leaves out half of them */
};

void ph_timeline_start(void); /* the process joins the run */

/* ---- every function takes ph_lock itself unless its name ends in _locked ---- */
struct ph_stream *ph_stream_create(int device, unsigned flags, int priority);
bool ph_stream_destroy(struct ph_stream *stream);
/* the stream of the job's handle; NULL: none */
static inline struct ph_stream *ph_stream_resolve(void *handle)
{
    return ph_backend.stream(handle);
}
bool ph_stream_valid(const struct ph_stream *stream);
struct ph_stream *ph_stream_default(void); /* the legacy stream of this thread's device */
struct ph_event *ph_event_create(unsigned flags);
bool ph_event_destroy(struct ph_event *event);
bool ph_event_valid(const struct ph_event *event);
void ph_event_record(struct ph_event *event, struct ph_stream *stream);
void ph_stream_wait(struct ph_stream *stream, const struct ph_event *event);
bool ph_event_ready(struct ph_event *event);
bool ph_stream_ready(struct ph_stream *stream);
void ph_event_synchronize(const struct ph_event *event);
void ph_stream_synchronize(struct ph_stream *stream);
void ph_device_synchronize(int device);
bool ph_event_elapsed(const struct ph_event *start, const struct ph_event *end,
                      float *milliseconds);
/* Runs GPU work of known length. `fills`: it leaves no room for other work on its GPU. */
void ph_run(struct ph_stream *stream, struct ph_time time, bool fills);
/* the event's simulated time; asks the hub if other ranks decide it */
uint64_t ph_event_moment(const struct ph_event *event);
/* Sets whether this thread launches a CUDA graph. Meanwhile its work has the gaps of a graph and
 * takes no slots in the launch queue. */
void ph_graph_launching(bool on);
bool ph_replaying(void);   /* whether this thread launches a CUDA graph */
struct ph_launches {       /* the launches of one communicator */
    uint64_t number;       /* assigned by the hub */
    struct ph_event *last; /* the end of the last one that others wait for; NULL: none waits */
    struct ph_beside *beside;
};
/* Launches communication: sends OPS. The stream's expression becomes its end vertex, which is
 * returned. `ops` holds `count` packed operations; `what` tells launches of different operations
 * apart. `alike` is the same for launches that take the same time alone, or 0 for messages. A
 * launch without messages begins after the last such one of its communicator. */
uint64_t ph_communicate(struct ph_stream *stream, struct ph_launches *comm, uint64_t what,
                        uint64_t alike, const struct ph_pack *ops, uint32_t count);
void ph_launches_free(struct ph_launches *comm);
/* Ends the communicator's launches that are not over. As on a GPU, it is for this process only:
 * other ranks wait on until they abort it too. */
void ph_launches_abort(const struct ph_launches *comm);
/* The communication that is launched next makes the stream's GPU send so many bytes. */
void ph_links_send(const struct ph_stream *stream, uint64_t bytes);
/* Makes a host-blocking request whose answer is an anchor (COMM_INIT, COMM_SPLIT). `rest` holds
 * `fields` packed values. The `answers` values before the time in the reply go to `answer`. */
void ph_rendezvous(enum ph_message type, const struct ph_pack *rest, uint32_t fields,
                   int64_t *answer, int answers);
/* From now on the hub keeps the times of whatever work may name, because a profile inside of the
 * job will ask for them; false: no longer. */
void ph_timeline_profiled(bool on);
/* CUPTI's number of the stream, for the trace */
uint32_t ph_stream_trace_number(const struct ph_stream *stream);

/* ---- with ph_lock held ---- */
void ph_run_locked(struct ph_stream *stream, struct ph_time time);
bool ph_stream_is_legacy(const struct ph_stream *stream);
/* the legacy stream and blocking streams wait for each other */
void ph_stream_order_locked(struct ph_stream *stream);
/* asks the hub for the exact time of an open clock; releases ph_lock meanwhile */
void ph_host_settle_locked(void);
#endif
