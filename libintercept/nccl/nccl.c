/* nccl/nccl.c - NCCL: communicators made through the hub, collectives as OPS messages, groups, and
 * the values of small buffers.
 *
 * Why it exists: the project simulates communication, so NCCL itself does not run. A call becomes
 * an operation. The operations of a group on one communicator and one stream are one launch, as in
 * NCCL. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "nccl/nccl.h"
#include "backend.h"
#include "base/api.h"
#include "base/log.h"
#include "base/memory.h"
#include "cudagraph/graph.h"
#include "link/connection.h"
#include "nccl/release.h"
#include "time/timeline.h"
#include "time/watchdog.h"
#include "trace/trace_log.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    OK = 0,
    UNHANDLED_CUDA_ERROR = 1,
    INTERNAL_ERROR = 3,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5
};
/* The release that the hub simulates for a job whose own it does not know (data/nccl.toml). */
enum { MEASURED_RELEASE = 22809 };
enum { BUILT_IN_OPS = PH_REDUCTION_AVG + 1, CUSTOM_OPS = 64, COMM_MAGIC = 0x5048434d, NONE = -1 };

struct unique_id {
    char bytes[128];
};
static _Thread_local int group_depth;
static _Thread_local struct ph_operation *queued, **queue_end;
/* the last error of this process as text: ncclGetLastError returns it and PyTorch prints it */
static const char *_Atomic last_error = "";
static struct {
    bool used;
    double factor;
} custom[CUSTOM_OPS]; /* ncclRedOpCreatePreMulSum */
static pthread_mutex_t PH_FREE_IN_CHILD custom_lock = PTHREAD_MUTEX_INITIALIZER;
#define type_bytes ph_nccl_type_bytes
const size_t ph_nccl_type_bytes[PH_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static struct ph_comm *valid(void *comm)
{
    return comm && ((struct ph_comm *)comm)->magic == COMM_MAGIC ? comm : NULL;
}

/* ---- values ---- */
bool ph_nccl_carries(const struct ph_operation *op)
{
    size_t most = op->send_bytes > op->recv_bytes ? op->send_bytes : op->recv_bytes;
    if (op->dtype == PH_TYPE_UINT8) return op->bytes <= PH_OBJECT_BYTES && most <= PH_OBJECTS_BYTES;
    if (op->dtype == PH_TYPE_INT32 || op->dtype == PH_TYPE_UINT32 || op->dtype == PH_TYPE_INT64 ||
        op->dtype == PH_TYPE_UINT64)
        return most <= PH_INDEX_BYTES;
    return most <= PH_SMALL_BYTES;
}

bool ph_nccl_receives(const struct ph_operation *op)
{
    bool own = op->kind == PH_COLLECTIVE_BROADCAST && op->send == op->recv;
    return op->recv_bytes && !own;
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
static uint16_t to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, 4);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

/* NCCL multiplies each rank's input before a "pre-multiplied sum". */
static void scale(void *data, size_t bytes, int dtype, double factor)
{
    for (size_t i = 0; i < bytes / type_bytes[dtype]; i++) switch (dtype) {
        case PH_TYPE_FP16:
            ((_Float16 *)data)[i] = (_Float16)((float)((_Float16 *)data)[i] * (float)factor);
            break;
        case PH_TYPE_FP32: ((float *)data)[i] *= (float)factor; break;
        case PH_TYPE_FP64: ((double *)data)[i] *= factor; break;
        case PH_TYPE_BF16:
            ((uint16_t *)data)[i] = to_bf16(from_bf16(((uint16_t *)data)[i]) * (float)factor);
            break;
        default: break;
        }
}

bool ph_nccl_premultiplies(const struct ph_operation *op) { return op->redop >= BUILT_IN_OPS; }

void ph_nccl_premultiply(const struct ph_operation *op, void *data)
{
    scale(data, op->send_bytes, op->dtype, op->factor);
}

/* ---- launching ---- */
static void release(void *operations)
{
    for (struct ph_operation *op = operations, *next; op; op = next) {
        next = op->next;
        free(op);
    }
}

/* What this rank sends in NCCL's rings. A tree sends as much in the mean over its ranks. */
static uint64_t sent_bytes(const struct ph_operation *op)
{
    uint64_t size = (uint64_t)op->comm->size,
             most = op->send_bytes > op->recv_bytes ? op->send_bytes : op->recv_bytes;
    if (op->kind == PH_COLLECTIVE_RECV) return 0;
    if (op->kind == PH_COLLECTIVE_SEND) return most;
    return most / size * (size - 1) * (op->kind == PH_COLLECTIVE_ALL_REDUCE ? 2 : 1);
}

static uint64_t mix(uint64_t hash, uint64_t field) { return hash * 0x100000001b3 + field + 1; }

/* Equal for launches of equal operations. */
static uint64_t what_of(const struct ph_operation *operations)
{
    uint64_t what = 0;
    for (const struct ph_operation *op = operations; op; op = op->next)
        what = mix(what * 31 + (uint64_t)op->kind, op->bytes);
    return what;
}

/* Equal for launches that take the same time when nothing else goes on. 0: the launch has messages,
 * whose time depends on their other side's launch too. Then it takes no turn on the communicator.
 * NCCL runs the kernels of one communicator in the order of their launches, on whatever streams
 * they are. But it buffers small messages, so that a send may end before its receive begins. Here
 * it does not, and ranks that send before they receive would wait for each other. */
static uint64_t alike(const struct ph_operation *operations)
{
    uint64_t hash = mix(0, operations->comm->launches.number);
    for (const struct ph_operation *op = operations; op; op = op->next) {
        if (op->kind >= PH_COLLECTIVE_SEND) return 0;
        hash = mix(mix(hash, (uint64_t)op->kind), op->bytes);
        hash = mix(mix(hash, (uint64_t)op->dtype), (uint64_t)(int64_t)op->peer);
    }
    return hash ? hash : 1;
}

/* `operations`: those of one communicator on one stream. If a graph has captured them, each launch
 * of the graph calls this function. */
static void issue(void *operations, struct ph_stream *stream)
{
    struct ph_operation *ours = operations;
    struct ph_comm *comm = ours->comm;
    uint32_t count = 0, index = 0;
    uint64_t sent = 0;
    struct ph_pack ops = {0};
    ph_host_pause();
    for (struct ph_operation *op = ours; op; op = op->next, count++) {
        sent += sent_bytes(op);
        ph_pack_array(&ops, 7);
        ph_pack_int(&ops, op->kind);
        ph_pack_uint(&ops, op->bytes);
        ph_pack_int(&ops, op->dtype);
        ph_pack_int(&ops, op->redop >= BUILT_IN_OPS ? PH_REDUCTION_SUM : op->redop);
        ph_pack_int(&ops, op->peer);
        ph_backend.nccl.payload(&ops, op);
        bool wanted = ph_nccl_receives(op) && ph_nccl_carries(op);
        ph_pack_uint(&ops, (wanted ? PH_OP_WANTS_RESULT : 0) |
                               (ph_backend.nccl.undefined(op) ? PH_OP_UNDEFINED : 0));
    }
    ph_host_resume();
    ph_links_send(stream, sent);
    uint64_t vertex =
        ph_communicate(stream, &comm->launches, what_of(ours), alike(ours), &ops, count);
    struct ph_log_comm logged = {.stream = ph_stream_trace_number(stream),
                                 .device = (uint32_t)stream->device,
                                 .vertex = vertex,
                                 .kind = (uint32_t)ours->kind,
                                 .dtype = (uint32_t)ours->dtype,
                                 .rank = (uint32_t)comm->rank,
                                 .size = (uint32_t)comm->size,
                                 .operations = count,
                                 .send_bytes = ours->send_bytes,
                                 .recv_bytes = ours->recv_bytes,
                                 .comm = comm->launches.number};
    PH_TRACE(ph_trace_communicated(logged));
    ph_pack_free(&ops);
    for (struct ph_operation *op = ours; op; op = op->next, index++)
        ph_backend.nccl.result(op, vertex, index);
}

static int launch(struct ph_operation *first)
{
    while (first) { /* the operations on one communicator and one stream are one launch */
        struct ph_operation *ours = NULL, **ours_end = &ours, *rest = NULL, **rest_end = &rest;
        struct ph_comm *comm = first->comm;
        void *handle = first->stream;
        struct ph_stream *stream = ph_stream_resolve(handle);
        if (!stream) return release(first), INVALID_ARGUMENT;
        const char *refused = ph_backend.nccl.refused(first);
        if (refused) {
            last_error = refused;
            release(first);
            return INVALID_USAGE;
        }
        int captured = PH_CAPTURING(stream);
        if (captured > 0) return release(first), UNHANDLED_CUDA_ERROR;
        for (struct ph_operation *op = first, *next; op; op = next) {
            next = op->next;
            op->next = NULL;
            struct ph_operation ***end =
                op->comm == comm && op->stream == handle ? &ours_end : &rest_end;
            **end = op;
            *end = &op->next;
        }
        if (captured) {
            ph_host_call(PH_CALL_COMM);
            ph_capture_op(stream, PH_GRAPH_OP_KERNEL, NULL, NULL,
                          (struct ph_action){issue, release, ours});
            PH_TRACE(ph_trace_call("cuLaunchKernelEx"));
            ph_leave();
        } else {
            issue(ours, stream);
            release(ours);
        }
        first = rest;
    }
    return OK;
}

/* In a communicator of one rank, NCCL copies the send buffer to the receive buffer. In place it
 * does nothing, unless the operation multiplies. An average of floating point multiplies, by 1.
 * Source: enqueue.cc and onerank.cu of NCCL 2.28. */
static bool nothing_to_do(const struct ph_operation *op)
{
    return op->comm->size == 1 && op->kind < PH_COLLECTIVE_SEND && op->send == op->recv &&
           op->redop < PH_REDUCTION_AVG;
}

/* The factor of an operation that the job has made; false: there is no such operation. */
static bool find_factor(struct ph_operation *op)
{
    if (op->redop < BUILT_IN_OPS) return true;
    if (op->redop - BUILT_IN_OPS >= CUSTOM_OPS) return false;
    pthread_mutex_lock(&custom_lock);
    bool found = custom[op->redop - BUILT_IN_OPS].used;
    op->factor = custom[op->redop - BUILT_IN_OPS].factor;
    pthread_mutex_unlock(&custom_lock);
    return found;
}

static int submit(struct ph_operation op)
{
    if (!valid(op.comm) || op.dtype < 0 || op.dtype >= PH_TYPES) return INVALID_ARGUMENT;
    if (op.peer >= op.comm->size) return INVALID_ARGUMENT;
    if (!find_factor(&op)) return INVALID_ARGUMENT;
    if (ph_forked()) return UNHANDLED_CUDA_ERROR;
    if (nothing_to_do(&op)) {
        ph_host_call(PH_CALL_COMM);
        ph_watchdogs_given_unlaunched();
        return OK;
    }
    struct ph_operation *copy = malloc(sizeof *copy);
    if (!copy) return INTERNAL_ERROR;
    *copy = op;
    copy->next = NULL;
    if (group_depth == 0) return launch(copy);
    PH_TRACE(ph_trace_queued());
    if (!queued) queue_end = &queued;
    *queue_end = copy;
    queue_end = &copy->next;
    return OK;
}

PH_API(int, ncclGroupStart, (void)) { return group_depth++, OK; }
PH_API(int, ncclGroupEnd, (void))
{
    if (group_depth == 0) return INVALID_USAGE;
    if (--group_depth) return OK;
    struct ph_operation *all = queued;
    queued = NULL;
    return launch(all);
}

PH_API(int, ncclAllReduce,
       (const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_ALL_REDUCE, type, op, NONE, send, recv, n, n,
                                        n, comm, stream, NULL, 0});
}
PH_API(int, ncclAllGather,
       (const void *send, void *recv, size_t count, int type, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_ALL_GATHER, type, NONE, NONE, send, recv, n,
                                        n, n * (size_t)valid(comm)->size, comm, stream, NULL, 0});
}
PH_API(int, ncclReduceScatter,
       (const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_REDUCE_SCATTER, type, op, NONE, send, recv, n,
                                        n * (size_t)valid(comm)->size, n, comm, stream, NULL, 0});
}
PH_API(int, ncclBroadcast,
       (const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_BROADCAST, type, NONE, root,
                                        valid(comm)->rank == root ? send : NULL, recv, n, n, n,
                                        comm, stream, NULL, 0});
}
PH_API(int, ncclBcast, (void *buffer, size_t count, int type, int root, void *comm, void *stream))
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
PH_API(int, ncclReduce,
       (const void *send, void *recv, size_t count, int type, int op, int root, void *comm,
        void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_REDUCE, type, op, root, send, recv, n, n,
                                        valid(comm)->rank == root ? n : 0, comm, stream, NULL, 0});
}
PH_API(int, ncclAlltoAll,
       (const void *send, void *recv, size_t count, int type, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type], all = n * (size_t)valid(comm)->size;
    return submit((struct ph_operation){PH_COLLECTIVE_ALL_TO_ALL, type, NONE, NONE, send, recv, n,
                                        all, all, comm, stream, NULL, 0});
}
PH_API(int, ncclGather,
       (const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){
        PH_COLLECTIVE_GATHER, type, NONE, root, send, recv, n, n,
        valid(comm)->rank == root ? n * (size_t)valid(comm)->size : 0, comm, stream, NULL, 0});
}
PH_API(int, ncclScatter,
       (const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    bool is_root = valid(comm)->rank == root;
    return submit((struct ph_operation){
        PH_COLLECTIVE_SCATTER, type, NONE, root, is_root ? send : NULL, recv, n,
        is_root ? n * (size_t)valid(comm)->size : n, n, comm, stream, NULL, 0});
}
PH_API(int, ncclSend,
       (const void *send, size_t count, int type, int peer, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_SEND, type, NONE, peer, send, NULL, n, n, 0,
                                        comm, stream, NULL, 0});
}
PH_API(int, ncclRecv, (void *recv, size_t count, int type, int peer, void *comm, void *stream))
{
    if (type < 0 || type >= PH_TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct ph_operation){PH_COLLECTIVE_RECV, type, NONE, peer, NULL, recv, n, 0, n,
                                        comm, stream, NULL, 0});
}

PH_API(int, ncclRedOpCreatePreMulSum, (int *op, void *scalar, int type, int residence, void *comm))
{
    double factor;
    _Alignas(8) unsigned char value[8];
    if (!valid(comm) || type < 0 || type >= PH_TYPES) return INVALID_ARGUMENT;
    if (!ph_backend.nccl.scalar(value, scalar, type_bytes[type], residence == 0))
        return INTERNAL_ERROR;
    switch (type) {
    case PH_TYPE_FP16: factor = (double)(float)*(_Float16 *)value; break;
    case PH_TYPE_FP32: factor = (double)*(float *)value; break;
    case PH_TYPE_FP64: factor = *(double *)value; break;
    case PH_TYPE_BF16: factor = (double)from_bf16(*(uint16_t *)value); break;
    default: return INVALID_ARGUMENT;
    }
    int found = NONE;
    pthread_mutex_lock(&custom_lock);
    for (int i = 0; i < CUSTOM_OPS && found == NONE; i++)
        if (!custom[i].used) {
            custom[i].used = true;
            custom[i].factor = factor;
            found = i;
        }
    pthread_mutex_unlock(&custom_lock);
    if (found == NONE) return INTERNAL_ERROR;
    *op = BUILT_IN_OPS + found;
    return OK;
}
PH_API(int, ncclRedOpDestroy, (int op, void *comm))
{
    (void)comm;
    if (op < BUILT_IN_OPS || op - BUILT_IN_OPS >= CUSTOM_OPS) return INVALID_ARGUMENT;
    pthread_mutex_lock(&custom_lock);
    custom[op - BUILT_IN_OPS].used = false;
    pthread_mutex_unlock(&custom_lock);
    return OK;
}

/* ---- communicators ---- */
static struct ph_comm *comm_make(int64_t number, int rank, int size)
{
    ph_watchdogs_expected();
    struct ph_comm *comm = malloc(sizeof *comm);
    if (!comm) ph_die("out of host memory");
    *comm = (struct ph_comm){.magic = COMM_MAGIC,
                             .rank = rank,
                             .size = size,
                             .device = ph_device_current(),
                             .launches.number = (uint64_t)number};
    /* a communicator of one rank only copies, on the job's stream */
    if (size > 1) comm->launches.last = ph_event_create(PH_EVENT_DISABLE_TIMING);
    return comm;
}

PH_API(int, ncclGetVersion, (int *version))
{
    int release = ph_nccl_release();
    return version ? (*version = release ? release : MEASURED_RELEASE, OK) : INVALID_ARGUMENT;
}
PH_API(int, ncclGetUniqueId, (struct unique_id *id))
{
    return getrandom(id, sizeof *id, 0) == sizeof *id ? OK : INTERNAL_ERROR;
}

PH_API(int, ncclCommInitRankConfig,
       (void **comm, int size, struct unique_id id, int rank, void *config))
{
    struct ph_pack rest = {0};
    int64_t number;
    /* a non-blocking initialisation is complete when it returns */
    if (size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    if (ph_forked()) return UNHANDLED_CUDA_ERROR;
    ph_touch(); /* the hub hears what the configuration asks for */
    if (!ph_nccl_config(config)) return INVALID_ARGUMENT;
    ph_pack_bin(&rest, &id, sizeof id);
    ph_pack_int(&rest, size);
    ph_pack_int(&rest, rank);
    ph_pack_int(&rest, ph_device_physical(ph_device_current()));
    ph_pack_int(&rest, ph_nccl_release());
    ph_rendezvous(PH_MESSAGE_COMM_INIT, &rest, 5, &number, 1);
    ph_host_joins((uint64_t)rank, (uint64_t)size);
    if (ph_backend.communicator_made) ph_backend.communicator_made(ph_device_current());
    ph_pack_free(&rest);
    *comm = comm_make(number, rank, size);
    return OK;
}
PH_API(int, ncclCommInitRank, (void **comm, int size, struct unique_id id, int rank))
{
    return ncclCommInitRankConfig(comm, size, id, rank, NULL);
}
PH_API(int, ncclCommInitRankScalable,
       (void **comm, int size, int rank, int ids, struct unique_id *id, void *config))
{
    return ids < 1 ? INVALID_ARGUMENT : ncclCommInitRankConfig(comm, size, *id, rank, config);
}

PH_API(int, ncclCommSplit, (void *handle, int color, int key, void **fresh, void *config))
{
    struct ph_comm *comm = valid(handle);
    struct ph_pack rest = {0};
    int64_t answer[3];
    if (ph_forked()) return UNHANDLED_CUDA_ERROR;
    if (!comm || !ph_nccl_config(config)) return INVALID_ARGUMENT;
    ph_pack_int(&rest, (int64_t)comm->launches.number);
    ph_pack_int(&rest, color);
    ph_pack_int(&rest, key);
    ph_rendezvous(PH_MESSAGE_COMM_SPLIT, &rest, 3, answer, 3);
    ph_pack_free(&rest);
    *fresh = answer[0] < 0 ? NULL : comm_make(answer[0], (int)answer[1], (int)answer[2]);
    return OK;
}

static int release_comm(void *handle)
{
    struct ph_comm *comm = valid(handle);
    struct ph_pack body = {0};
    /* as in NCCL: releasing NULL succeeds */
    if (!handle) return OK;
    if (!comm) return INVALID_ARGUMENT;
    if (ph_forked()) return UNHANDLED_CUDA_ERROR;
    ph_pack_uint(&body, ph_now());
    ph_pack_int(&body, (int64_t)comm->launches.number);
    ph_send(PH_MESSAGE_COMM_FREE, &body, 2);
    ph_pack_free(&body);
    comm->magic = 0;
    ph_launches_free(&comm->launches);
    free(comm);
    return OK;
}
PH_API(int, ncclCommFinalize, (void *comm)) { return !comm || valid(comm) ? OK : INVALID_ARGUMENT; }
PH_API(int, ncclCommDestroy, (void *comm)) { return release_comm(comm); }
PH_API(int, ncclCommAbort, (void *handle))
{
    struct ph_comm *comm = ph_forked() ? NULL : valid(handle);
    if (comm) ph_launches_abort(&comm->launches);
    return release_comm(handle);
}
PH_API(int, ncclCommGetAsyncError, (void *comm, int *error))
{
    ph_watchdog_asks_for_errors();
    return *error = OK, valid(comm) ? OK : INVALID_ARGUMENT;
}
PH_API(int, ncclCommCount, (void *comm, int *count))
{
    return valid(comm) ? (*count = valid(comm)->size, OK) : INVALID_ARGUMENT;
}
PH_API(int, ncclCommUserRank, (void *comm, int *rank))
{
    return valid(comm) ? (*rank = valid(comm)->rank, OK) : INVALID_ARGUMENT;
}
PH_API(int, ncclCommCuDevice, (void *comm, int *device))
{
    return valid(comm) ? (*device = valid(comm)->device, OK) : INVALID_ARGUMENT;
}

#undef PH_CLASS
#define PH_CLASS PH_HINT
/* Registration only makes real transfers zero-copy; nothing is transferred here. */
PH_API(int, ncclCommRegister, (void *comm, void *buffer, size_t bytes, void **handle))
{
    (void)bytes;
    *handle = buffer;
    return valid(comm) ? OK : INVALID_ARGUMENT;
}
PH_API(int, ncclCommDeregister, (void *comm, void *handle))
{
    (void)handle;
    return valid(comm) ? OK : INVALID_ARGUMENT;
}
#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
PH_API(int, ncclMemAlloc, (void **pointer, size_t bytes))
{
    if (ph_forked()) return UNHANDLED_CUDA_ERROR;
    ph_host_call(PH_CALL_MALLOC);
    return (*pointer = ph_backend.nccl.alloc(bytes)) ? OK : 1; /* ncclUnhandledCudaError */
}
PH_API(int, ncclMemFree, (void *pointer))
{
    return !pointer || ph_backend.nccl.free(pointer) ? OK : INVALID_ARGUMENT;
}

PH_API(const char *, ncclGetErrorString, (int error)) { return ph_nccl_error_text(error); }
PH_API(const char *, ncclGetLastError, (void *comm))
{
    (void)comm;
    return last_error;
}
