/* nccl.c - NCCL: communicators met through the hub, collectives as OPS messages, groups, and values of small buffers.
 *
 * Why it exists: communication is what the simulation is about, so no NCCL runs here. A call becomes an operation; the operations
 * of a group on one communicator and one stream are one launch, as in NCCL. */
#include "core.h"
#include "stale.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { OK = 0, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV };
enum { UINT8 = 1, FP16 = 6, FP32 = 7, FP64 = 8, BF16 = 9, TYPES = 12, BUILT_IN_OPS = 5, CUSTOM_OPS = 64, COMM_MAGIC = 0x5048434d, NONE = -1 };

struct unique_id {
    char bytes[128];
};
struct comm {
    uint32_t magic;
    int64_t number; /* the hub's */
    int rank, size, device;
};
struct operation {
    int kind, dtype, redop, peer;
    const void *send;
    void *recv;
    size_t bytes, send_bytes, recv_bytes; /* bytes: as the wire protocol counts; 0 recv_bytes: this rank gets nothing */
    struct comm *comm;
    void *stream;
    struct operation *next;
};

static _Thread_local int group_depth;
static _Thread_local struct operation *queued, **queue_end;
static struct { bool used; double factor; } custom[CUSTOM_OPS]; /* ncclRedOpCreatePreMulSum */
static pthread_mutex_t custom_lock = PTHREAD_MUTEX_INITIALIZER;
static const size_t type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static struct comm *valid(void *comm) { return comm && ((struct comm *)comm)->magic == COMM_MAGIC ? comm : NULL; }

/* ---- values ------------------------------------------------------------------------------------------------------------------ */
static bool carries(const struct operation *op)
{
    size_t most = op->send_bytes > op->recv_bytes ? op->send_bytes : op->recv_bytes;
    if (op->dtype == UINT8) return op->bytes <= PH_OBJECT_BYTES && most <= PH_OBJECTS_BYTES;
    return most <= PH_SMALL_BYTES;
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
    for (size_t i = 0; i < bytes / type_bytes[dtype]; i++)
        switch (dtype) {
        case FP16: ((_Float16 *)data)[i] = (_Float16)((float)((_Float16 *)data)[i] * (float)factor); break;
        case FP32: ((float *)data)[i] *= (float)factor; break;
        case FP64: ((double *)data)[i] *= factor; break;
        case BF16: ((uint16_t *)data)[i] = to_bf16(from_bf16(((uint16_t *)data)[i]) * (float)factor); break;
        default: break;
        }
}

static void pack_payload(struct ph_pack *pack, const struct operation *op)
{
    if (!op->send || !op->send_bytes || !carries(op)) {
        ph_pack_nil(pack);
        return;
    }
    ph_payload_settle(op->send, op->send_bytes);
    if (ph_absent(op->send, op->send_bytes) || ph_all_zero(op->send, op->send_bytes)) ph_pack_nil(pack);
    else if (op->redop >= BUILT_IN_OPS) {
        void *copy = malloc(op->send_bytes);
        if (!copy) ph_die("out of host memory");
        memcpy(copy, op->send, op->send_bytes);
        scale(copy, op->send_bytes, op->dtype, custom[op->redop - BUILT_IN_OPS].factor);
        ph_pack_bin(pack, copy, op->send_bytes);
        free(copy);
    } else ph_pack_bin(pack, op->send, op->send_bytes);
}

/* ---- launching ------------------------------------------------------------------------------------------------------------------ */
static int launch(struct operation *first)
{
    while (first) { /* all queued operations of the first one's communicator and stream go as one */
        struct operation *ours = NULL, **ours_end = &ours, *rest = NULL, **rest_end = &rest;
        uint32_t count = 0;
        struct comm *comm = first->comm;
        void *handle = first->stream;
        struct ph_stream *stream = ph_stream_resolve(handle);
        if (!stream) return INVALID_ARGUMENT;
        for (struct operation *op = first, *next; op; op = next) {
            next = op->next;
            op->next = NULL;
            struct operation ***end = op->comm == comm && op->stream == handle ? (count++, &ours_end) : &rest_end;
            **end = op;
            *end = &op->next;
        }
        struct ph_pack ops = {0};
        ph_host_pause();
        for (struct operation *op = ours; op; op = op->next) {
            ph_pack_array(&ops, 7);
            ph_pack_int(&ops, op->kind);
            ph_pack_uint(&ops, op->bytes);
            ph_pack_int(&ops, op->dtype);
            ph_pack_int(&ops, op->redop >= BUILT_IN_OPS ? 0 : op->redop);
            ph_pack_int(&ops, op->peer);
            pack_payload(&ops, op);
            ph_pack_uint(&ops, op->recv_bytes && carries(op));
            if (op->recv_bytes && !carries(op) && ph_is_device(op->recv)) ph_forget(op->recv, op->recv_bytes);
        }
        ph_host_resume();
        uint64_t node = ph_communicate(stream, (uint64_t)comm->number, &ops, count);
        ph_pack_free(&ops);
        uint32_t index = 0;
        for (struct operation *op = ours, *next; op; op = next, index++) {
            next = op->next;
            if (op->recv_bytes && carries(op)) ph_payload_expect(op->recv, op->recv_bytes, node, index);
            free(op);
        }
        first = rest;
    }
    return OK;
}

static int submit(struct operation op)
{
    if (!valid(op.comm) || op.dtype < 0 || op.dtype >= TYPES) return INVALID_ARGUMENT;
    if (op.peer >= op.comm->size) return INVALID_ARGUMENT;
    if (op.redop >= BUILT_IN_OPS && (op.redop - BUILT_IN_OPS >= CUSTOM_OPS || !custom[op.redop - BUILT_IN_OPS].used)) return INVALID_ARGUMENT;
    struct operation *copy = malloc(sizeof *copy);
    if (!copy) return INTERNAL_ERROR;
    *copy = op;
    copy->next = NULL;
    if (group_depth == 0) return launch(copy);
    if (!queued) queue_end = &queued;
    *queue_end = copy;
    queue_end = &copy->next;
    return OK;
}

PH_EXPORT int ncclGroupStart(void);
PH_EXPORT int ncclGroupStart(void) { return group_depth++, OK; }
PH_EXPORT int ncclGroupEnd(void);
PH_EXPORT int ncclGroupEnd(void)
{
    if (group_depth == 0) return INVALID_USAGE;
    if (--group_depth) return OK;
    struct operation *all = queued;
    queued = NULL;
    return launch(all);
}

PH_EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);
PH_EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){ALL_REDUCE, type, op, NONE, send, recv, n, n, n, comm, stream, NULL});
}
PH_EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream);
PH_EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){ALL_GATHER, type, NONE, NONE, send, recv, n, n, n * (size_t)valid(comm)->size, comm, stream, NULL});
}
PH_EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream);
PH_EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){REDUCE_SCATTER, type, op, NONE, send, recv, n, n * (size_t)valid(comm)->size, n, comm, stream, NULL});
}
PH_EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream);
PH_EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){BROADCAST, type, NONE, root, valid(comm)->rank == root ? send : NULL, recv, n, n, n, comm, stream, NULL});
}
PH_EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, void *comm, void *stream);
PH_EXPORT int ncclBcast(void *buffer, size_t count, int type, int root, void *comm, void *stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
PH_EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream);
PH_EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){REDUCE, type, op, root, send, recv, n, n, valid(comm)->rank == root ? n : 0, comm, stream, NULL});
}
PH_EXPORT int ncclAlltoAll(const void *send, void *recv, size_t count, int type, void *comm, void *stream);
PH_EXPORT int ncclAlltoAll(const void *send, void *recv, size_t count, int type, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type], all = n * (size_t)valid(comm)->size;
    return submit((struct operation){ALL_TO_ALL, type, NONE, NONE, send, recv, n, all, all, comm, stream, NULL});
}
PH_EXPORT int ncclGather(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream);
PH_EXPORT int ncclGather(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){GATHER, type, NONE, root, send, recv, n, n, valid(comm)->rank == root ? n * (size_t)valid(comm)->size : 0, comm, stream, NULL});
}
PH_EXPORT int ncclScatter(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream);
PH_EXPORT int ncclScatter(const void *send, void *recv, size_t count, int type, int root, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES || !valid(comm)) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    bool is_root = valid(comm)->rank == root;
    return submit((struct operation){SCATTER, type, NONE, root, is_root ? send : NULL, recv, n, is_root ? n * (size_t)valid(comm)->size : n, n, comm, stream, NULL});
}
PH_EXPORT int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream);
PH_EXPORT int ncclSend(const void *send, size_t count, int type, int peer, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){SEND, type, NONE, peer, send, NULL, n, n, 0, comm, stream, NULL});
}
PH_EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream);
PH_EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, void *comm, void *stream)
{
    if (type < 0 || type >= TYPES) return INVALID_ARGUMENT;
    size_t n = count * type_bytes[type];
    return submit((struct operation){RECV, type, NONE, peer, NULL, recv, n, 0, n, comm, stream, NULL});
}

PH_EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *comm);
PH_EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, void *comm)
{
    double factor;
    (void)residence; /* device scalars are small: their value lives at their address */
    if (!valid(comm)) return INVALID_ARGUMENT;
    if (ph_is_device(scalar)) ph_payload_settle(scalar, 8);
    switch (type) {
    case FP16: factor = (double)(float)*(_Float16 *)scalar; break;
    case FP32: factor = (double)*(float *)scalar; break;
    case FP64: factor = *(double *)scalar; break;
    case BF16: factor = (double)from_bf16(*(uint16_t *)scalar); break;
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
PH_EXPORT int ncclRedOpDestroy(int op, void *comm);
PH_EXPORT int ncclRedOpDestroy(int op, void *comm)
{
    (void)comm;
    if (op < BUILT_IN_OPS || op - BUILT_IN_OPS >= CUSTOM_OPS) return INVALID_ARGUMENT;
    custom[op - BUILT_IN_OPS].used = false;
    return OK;
}

/* ---- communicators ---------------------------------------------------------------------------------------------------------------- */
static struct comm *comm_make(int64_t number, int rank, int size)
{
    struct comm *comm = malloc(sizeof *comm);
    if (!comm) ph_die("out of host memory");
    *comm = (struct comm){COMM_MAGIC, number, rank, size, ph_device_current()};
    return comm;
}

PH_EXPORT int ncclGetVersion(int *version);
PH_EXPORT int ncclGetVersion(int *version) { return *version = 22809, OK; }
PH_EXPORT int ncclGetUniqueId(struct unique_id *id);
PH_EXPORT int ncclGetUniqueId(struct unique_id *id) { return getrandom(id, sizeof *id, 0) == sizeof *id ? OK : INTERNAL_ERROR; }

PH_EXPORT int ncclCommInitRankConfig(void **comm, int size, struct unique_id id, int rank, void *config);
PH_EXPORT int ncclCommInitRankConfig(void **comm, int size, struct unique_id id, int rank, void *config)
{
    struct ph_pack rest = {0};
    int64_t number;
    (void)config; /* a non-blocking initialisation has simply ended when it returns */
    if (size < 1 || rank < 0 || rank >= size) return INVALID_ARGUMENT;
    ph_pack_bin(&rest, &id, sizeof id);
    ph_pack_int(&rest, size);
    ph_pack_int(&rest, rank);
    ph_pack_int(&rest, ph_device_physical(ph_device_current()));
    ph_rendezvous(PH_COMM_INIT, &rest, 4, &number, 1);
    ph_pack_free(&rest);
    *comm = comm_make(number, rank, size);
    return OK;
}
PH_EXPORT int ncclCommInitRank(void **comm, int size, struct unique_id id, int rank);
PH_EXPORT int ncclCommInitRank(void **comm, int size, struct unique_id id, int rank) { return ncclCommInitRankConfig(comm, size, id, rank, NULL); }
PH_EXPORT int ncclCommInitRankScalable(void **comm, int size, int rank, int ids, struct unique_id *id, void *config);
PH_EXPORT int ncclCommInitRankScalable(void **comm, int size, int rank, int ids, struct unique_id *id, void *config)
{
    return ids < 1 ? INVALID_ARGUMENT : ncclCommInitRankConfig(comm, size, *id, rank, config);
}

PH_EXPORT int ncclCommSplit(void *handle, int color, int key, void **fresh, void *config);
PH_EXPORT int ncclCommSplit(void *handle, int color, int key, void **fresh, void *config)
{
    struct comm *comm = valid(handle);
    struct ph_pack rest = {0};
    int64_t answer[3];
    (void)config;
    if (!comm) return INVALID_ARGUMENT;
    ph_pack_int(&rest, comm->number);
    ph_pack_int(&rest, color);
    ph_pack_int(&rest, key);
    ph_rendezvous(PH_COMM_SPLIT, &rest, 3, answer, 3);
    ph_pack_free(&rest);
    *fresh = answer[0] < 0 ? NULL : comm_make(answer[0], (int)answer[1], (int)answer[2]);
    return OK;
}

static int release(void *handle)
{
    struct comm *comm = valid(handle);
    struct ph_pack body = {0};
    if (!handle) return OK; /* as in NCCL: what was never made or is gone already needs no release */
    if (!comm) return INVALID_ARGUMENT;
    ph_pack_uint(&body, ph_now());
    ph_pack_int(&body, comm->number);
    ph_send(PH_COMM_FREE, &body, 2);
    ph_pack_free(&body);
    comm->magic = 0;
    free(comm);
    return OK;
}
PH_EXPORT int ncclCommFinalize(void *comm);
PH_EXPORT int ncclCommFinalize(void *comm) { return !comm || valid(comm) ? OK : INVALID_ARGUMENT; }
PH_EXPORT int ncclCommDestroy(void *comm);
PH_EXPORT int ncclCommDestroy(void *comm) { return release(comm); }
PH_EXPORT int ncclCommAbort(void *comm);
PH_EXPORT int ncclCommAbort(void *comm) { return release(comm); }
PH_EXPORT int ncclCommGetAsyncError(void *comm, int *error);
PH_EXPORT int ncclCommGetAsyncError(void *comm, int *error) { return *error = OK, valid(comm) ? OK : INVALID_ARGUMENT; }
PH_EXPORT int ncclCommCount(void *comm, int *count);
PH_EXPORT int ncclCommCount(void *comm, int *count) { return valid(comm) ? (*count = valid(comm)->size, OK) : INVALID_ARGUMENT; }
PH_EXPORT int ncclCommUserRank(void *comm, int *rank);
PH_EXPORT int ncclCommUserRank(void *comm, int *rank) { return valid(comm) ? (*rank = valid(comm)->rank, OK) : INVALID_ARGUMENT; }
PH_EXPORT int ncclCommCuDevice(void *comm, int *device);
PH_EXPORT int ncclCommCuDevice(void *comm, int *device) { return valid(comm) ? (*device = valid(comm)->device, OK) : INVALID_ARGUMENT; }

/* Registration only makes real transfers zero-copy; nothing is transferred here. */
PH_EXPORT int ncclCommRegister(void *comm, void *buffer, size_t bytes, void **handle);
PH_EXPORT int ncclCommRegister(void *comm, void *buffer, size_t bytes, void **handle)
{
    (void)bytes;
    *handle = buffer;
    return valid(comm) ? OK : INVALID_ARGUMENT;
}
PH_EXPORT int ncclCommDeregister(void *comm, void *handle);
PH_EXPORT int ncclCommDeregister(void *comm, void *handle)
{
    (void)handle;
    return valid(comm) ? OK : INVALID_ARGUMENT;
}
PH_EXPORT int ncclMemAlloc(void **pointer, size_t bytes);
PH_EXPORT int ncclMemAlloc(void **pointer, size_t bytes)
{
    ph_host_cost(ph_spec()->alloc_cost_ns);
    return (*pointer = ph_device_alloc(ph_device_current(), bytes)) ? OK : 1; /* ncclUnhandledCudaError */
}
PH_EXPORT int ncclMemFree(void *pointer);
PH_EXPORT int ncclMemFree(void *pointer) { return !pointer || ph_device_free(pointer) ? OK : INVALID_ARGUMENT; }

PH_EXPORT const char *ncclGetErrorString(int error);
PH_EXPORT const char *ncclGetErrorString(int error)
{
    static const char *const text[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress"};
    return error >= 0 && error < 8 ? text[error] : "unknown result code";
}
PH_EXPORT const char *ncclGetLastError(void *comm);
PH_EXPORT const char *ncclGetLastError(void *comm)
{
    (void)comm;
    return "";
}
