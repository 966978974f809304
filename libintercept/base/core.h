/* core.h - the state behind shim.h: streams, events, allocations, the host clock, the hub
 * connection.
 *
 * Why it exists: the API files see only shim.h and these functions; everything that must be locked
 * is locked behind them. Rule: `ph_lock` guards streams, events and the host clock; it is never
 * held while waiting for the hub. */
#ifndef PH_CORE_H
#define PH_CORE_H
#include "base/shim.h"
#include <pthread.h>
#include <stdatomic.h>

/* ---- environment ---- */
#define PH_WINDOW_BASE 0x7a0000000000ull /* cudaMalloc: one slice per device */
#define PH_SLICE_BYTES (1ull << 39)
#define PH_WINDOW_END (PH_WINDOW_BASE + 8 * PH_SLICE_BYTES)
#define PH_VIRTUAL_BASE 0x600000000000ull /* cuMemAddressReserve */
#define PH_VIRTUAL_END 0x700000000000ull
#define PH_SMALL_BYTES 65536u /* values of collectives up to this size are carried */
/* and collectives of integers up to this: tensors of so many integers have values */
#define PH_INDEX_BYTES (8u << 20)
#define PH_COPY_BYTES (1u << 20) /* copies up to this size are carried */
/* collectives of bytes, which are pickled objects, are carried up to this size per rank */
#define PH_OBJECT_BYTES (16u << 20)
#define PH_OBJECTS_BYTES (64u << 20) /* and up to this size for all ranks together */

const char *ph_env(const char *name); /* simulated/env.c. NULL when unset or empty */
extern pthread_mutex_t ph_lock;

/* ---- heads: max-plus expressions over nodes (docs/wire-protocol.md) ---- */
enum { PH_HEAD_MAX = 8 };
struct ph_entry {
    uint64_t node;
    /* drag: what the work takes longer when communication runs beside all of it */
    int64_t lag, work, drag;
};
struct ph_head {
    int count;
    struct ph_entry entry[PH_HEAD_MAX];
};

struct ph_place {     /* in the order of a stream's work; stream 0: none */
    uint64_t stream;  /* id */
    int64_t position; /* of what precedes (time/launch_queue.c) */
    uint64_t works;   /* issued before; UINT64_MAX: not known */
};

struct ph_capture; /* capture.c */
struct ph_node;    /* graph.h */
struct ph_nodes {  /* a set, in the order in which it was made */
    uint32_t count, room;
    struct ph_node **node;
};

struct ph_queue; /* time/launch_queue.c */
struct ph_stream {
    uint32_t magic;
    int device, priority;
    unsigned flags;
    uint64_t id, busy_ns, last_launch; /* last_launch: node of the last communication on it */
    int64_t position;      /* what its works take at least, one after the other, gaps included */
    struct ph_place after; /* a place of another stream that its head comes after */
    struct ph_queue *queue;
    bool used;
    struct ph_head head;
    struct ph_capture *capture; /* NULL: none */
    struct ph_nodes tails;      /* of it: what this stream's next node depends on */
    uint32_t lane;
    struct ph_stream *next;
};

struct ph_event {
    uint32_t magic;
    unsigned flags;
    int device;
    bool recorded;
    struct ph_place place;
    struct ph_head head;
    uint64_t captured;             /* the capture that it was last recorded in; 0: none */
    struct ph_nodes tails;         /* what waiting for it depends on there */
    struct ph_event *next, **link; /* all events, for the nodes that they still name */
    void *shared;  /* simulated/memory/ipc.c: what other processes see of it; NULL: nothing */
    bool imported; /* another process records it */
    char file[32];
};

struct ph_time { /* of a piece of GPU work */
    uint64_t duration_ns;
    uint32_t source;        /* enum ph_source */
    uint32_t drag_permille; /* how much longer beside communication */
    enum ph_bound_by bound_by;
    uint32_t works; /* slots of the launch queue, as in ph_kernel_table_slot; 0: none */
};

/* ---- timeline.c: every function takes ph_lock itself unless its name ends in _locked ---- */
/* the process starts to use CUDA: joins the hub, starts its clock; idempotent, cheap */
void ph_touch(void);
bool ph_touched(void);
uint64_t ph_now(void); /* advances the host chain by the caller's CPU time and returns it */
struct ph_stream *ph_stream_create(int device, unsigned flags, int priority);
bool ph_stream_destroy(struct ph_stream *stream);
/* simulated/cuda/resolve.c, leader/gpu/streams.c. NULL: no such stream */
struct ph_stream *ph_stream_resolve(void *handle);
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
/* on the way into a call: what passed since the last one, and what the call costs */
void ph_host_call(enum ph_call call);
/* from here on this thread's CPU time is ours, not the job's */
void ph_host_pause(void);
void ph_host_resume(void);
/* the call that this thread is in costs so much more */
void ph_host_cost(uint64_t cost_ns);
struct ph_time ph_duration(const struct ph_pack *signature);
/* the same, where its key is known */
struct ph_time ph_duration_of(uint64_t key, const struct ph_pack *signature);
uint64_t ph_signature_key(const struct ph_pack *signature);
/* What this process or the shared table knows; false: nobody has asked yet. Sends nothing. */
bool ph_duration_known(uint64_t key, struct ph_time *time);
/* Asks the hub whatever is known here, and keeps its answer: what was MEASURED before it is taken
 * into account. */
struct ph_time ph_duration_ask(uint64_t key, const struct ph_pack *signature);
/* LOOKUP's `context`: the framework operator that encloses this thread's call, or nil */
void ph_pack_context(struct ph_pack *body);
/* A collective launch: sends OPS and leaves its end node as the stream's head. `ops` is count
 * packed operations. */
uint64_t ph_communicate(struct ph_stream *stream, uint64_t comm, const struct ph_pack *ops,
                        uint32_t count);

/* ---- link/connection.c: the connection. Thread-safe. ---- */
struct ph_reply { /* a received frame with a read cursor */
    unsigned char *data;
    size_t length, at;
    bool bad;
    void *owner; /* what ph_reply_free frees */
};
/* makes the rank statistics, says HELLO, waits for WELCOME; dies with one line when there is no hub
 */
void ph_hub_connect(void);
bool ph_hub_connected(void);
struct ph_rank_stats *ph_stats(void); /* never NULL after ph_hub_connect */
uint64_t ph_request_id(void);
/* Sends [type, seq, body...]; body holds `fields` packed values. */
void ph_send(enum ph_message type, const struct ph_pack *body, uint32_t fields);
/* Waits for the reply that carries `req`; positioned after [type, req]. Dies if the hub answers
 * with an error. timeout_ms < 0 waits for ever; false when the time ran out. */
bool ph_wait(uint64_t req, struct ph_reply *reply, int timeout_ms);
void ph_reply_free(struct ph_reply *reply);
int64_t ph_read_int(struct ph_reply *reply);
uint32_t ph_read_array(struct ph_reply *reply);
const unsigned char *ph_read_bytes(struct ph_reply *reply, size_t *length);
void ph_hub_forget(void); /* in a forked child */

/* A host-blocking request whose answer is an anchor (COMM_INIT, COMM_SPLIT): `rest` holds `fields`
 * packed values; the reply's values before the time go to `answer`. */
void ph_rendezvous(enum ph_message type, const struct ph_pack *rest, uint32_t fields,
                   int64_t *answer, int answers);

/* ---- simulated/memory/memory.c ---- */
struct ph_allocation {
    uintptr_t base;
    size_t bytes;
    int device;
    enum ph_memory_kind kind;
    uint64_t id;
};
bool ph_is_device(const void *pointer);
void *ph_device_alloc(int device, size_t bytes); /* NULL: out of memory */
/* a kernel is launched: the first one changes where allocations go */
void ph_device_code(int device);
/* a communicator is made: the first one does as well */
void ph_device_communicator(int device);
bool ph_device_free(void *pointer); /* false: not an allocation */
void *ph_pinned_alloc(size_t bytes);
bool ph_pinned_free(void *pointer);
void ph_pinned_register(void *pointer, size_t bytes);
bool ph_pinned_unregister(void *pointer);
/* the allocation around a pointer */
bool ph_find(const void *pointer, struct ph_allocation *found);
enum ph_memory_kind ph_kind(const void *pointer);
int ph_pointer_device(const void *pointer);
/* account for memory without an address; false: out of memory */
bool ph_charge(int device, uint64_t bytes);
void ph_discharge(int device, uint64_t bytes);
void *ph_virtual_reserve(size_t bytes, size_t alignment);
bool ph_virtual_free(void *pointer, size_t bytes);
void ph_virtual_owner(void *pointer, size_t bytes, int device); /* device -1: unmapped */
/* Moves the values of a copy if they are carried at all, else makes the destination zero. True: the
 * host gets bytes of the device that nothing computed. */
bool ph_move(void *destination, const void *source, size_t bytes);
void ph_fill(void *destination, int value, size_t bytes);

/* ---- simulated/values/payload.c: values that collectives bring ---- */
void ph_payload_expect(void *destination, size_t bytes, uint64_t node, uint32_t index);
/* call before reading or writing device memory on the CPU */
void ph_payload_settle(const void *pointer, size_t bytes);
extern const char *const ph_without_values; /* what a job lacks without that library */
/* work/values_library.c: starts the values library if torch is there; once; before torch's first
 * operator */
void ph_values_load(void);
/* simulated/values/scalar_readback.c: a copy to the host was answered by a planted number */
bool ph_scalar_readback(void *destination, size_t bytes);
/* whether a copy of so many bytes would get a GPU's number, not a policy's */
bool ph_scalar_readback_exact(size_t bytes);
bool ph_all_zero(const void *pointer, size_t bytes);

/* ---- work/occurrence.c, simulated/values/replay.c: values that a leader's GPU computed ---- */
enum { PH_QUESTION = 512 };
uint64_t ph_question_hash(const char *question);
uint32_t ph_occasion(uint64_t hash); /* for the how manieth time this process asks it, from 0 */
/* of the host that reads so many bytes of device memory */
void ph_read_question(char text[PH_QUESTION], size_t bytes);
struct ph_replayed {
    const void *value;
    size_t bytes;
    int dtype; /* c10::ScalarType */
};
/* Every asking counts; with `wanted`, whether the question has a recorded answer on this occasion.
 */
bool ph_replay(const char *question, bool wanted, struct ph_replayed *told);
/* Before the host reads device memory: unknown bytes get what was recorded, if it is `wanted`. True
 * when they did. */
bool ph_replay_read(const void *source, size_t bytes, bool wanted);

/* ---- time/gpu_faults.c ---- */
void ph_stragglers_read(void);
/* the duration on this GPU, if it is slow */
uint64_t ph_straggle(int device, uint64_t duration_ns, uint64_t now);

/* ---- time/host_model.c: the job's host time between calls, by the place in the program ---- */
uint32_t ph_operator_place(const char **name, bool count); /* duration.c */
/* time/cpu_score.c: thread CPU time of a fixed piece of work, nanoseconds; 0: no memory */
uint64_t phantora_host_score(void);
void ph_sites_record(void);               /* from here on measured host time is kept by site */
void ph_sites_pack(struct ph_pack *pack); /* the array "sites" of a HOST message; takes ph_lock */

/* ---- the last error of the runtime API, per thread (simulated/cuda/cudart.c) ---- */
int ph_set_error(int error);
#endif
