/* copies.c - the runtime API's memory calls: allocation, copies, fills, pinned memory, pointer
 * queries.
 *
 * Why it exists: three aspects of a copy must agree: the bytes (memory.c), the time on a stream,
 * and whether the host waits (ph_copy_waits). */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "trace/trace_log.h"
#include "work/duration.h"
#include "cudagraph/graph.h"
#include "simulated/cuda/runtime.h"
#include "simulated/cuda/versions.h"
#include "simulated/memory/memory.h"
#include "simulated/values/defined.h"
#include "simulated/values/replay.h"
#include "simulated/values/scalar_readback.h"
#include <stdlib.h>
#include <string.h>

/* ---- the values of copies and fills, now or at the launch of a graph ---- */
struct rows {
    char *destination;
    const char *source; /* NULL: a fill */
    size_t to_pitch, from_pitch, width, height;
    int value;
};

static void move_rows(void *data, struct ph_stream *stream)
{
    const struct rows *rows = data;
    bool undefined = false;
    (void)stream;
    for (size_t row = 0; row < rows->height; row++)
        if (rows->source)
            undefined = ph_move(rows->destination + row * rows->to_pitch,
                                rows->source + row * rows->from_pitch, rows->width) ||
                        undefined;
        else
            ph_fill(rows->destination + row * rows->to_pitch, rows->value, rows->width);
    if (undefined) ph_count_undefined_read();
}

/* The same as an op of the graph that the stream is captured into. */
static int capture_rows(struct ph_stream *stream, int op, int from, int to, struct rows rows)
{
    struct ph_signature signature = {0};
    struct rows *kept = malloc(sizeof *kept);
    if (!kept) ph_die("out of host memory");
    *kept = rows;
    ph_memory_signature(&signature, op, rows.width * rows.height, from, to);
    ph_duration(&signature);
    ph_capture_op(stream, op == PH_MEMORY_SET ? PH_GRAPH_OP_SET : PH_GRAPH_OP_COPY, &signature,
                  NULL, (struct ph_action){move_rows, free, kept});
    ph_signature_free(&signature);
    PH_TRACE(ph_trace_call(op == PH_MEMORY_SET ? "cudaMemsetAsync" : "cudaMemcpyAsync"));
    ph_leave();
    return CUDA_OK;
}

static void memory_work(int op, uint64_t bytes, int from, int to, struct ph_stream *stream)
{
    struct ph_signature signature = {0};
    ph_memory_signature(&signature, op, bytes, from, to);
    PH_TRACE(ph_signature_trace(&signature)); /* the caller ends the call after it has waited */
    ph_run(stream, ph_duration(&signature), signature.copies_inside);
    ph_signature_free(&signature);
}

static int kind_of(const void *pointer, int *device)
{
    enum ph_memory_kind kind = ph_kind(pointer);
    *device = kind == PH_DEVICE ? ph_pointer_device(pointer) : -1;
    return (int)kind;
}

int ph_copy(void *destination, const void *source, size_t bytes, void *handle, bool blocking)
{
    int to_device, from_device;
    int to = kind_of(destination, &to_device), from = kind_of(source, &from_device);
    struct ph_stream *stream = ph_stream_resolve(handle);
    int captured = PH_CAPTURING(stream);
    if (captured > 0) return captured;
    ph_host_call(PH_CALL_COPY);
    if (bytes == 0) return CUDA_OK;
    if (to == PH_DEVICE && from == PH_DEVICE && to_device != from_device) from = 3;
    if (captured)
        return capture_rows(stream, PH_MEMORY_COPY, from, to,
                            (struct rows){destination, source, bytes, bytes, bytes, 1, 0});
    memory_work(0, bytes, from, to, stream);
    if (ph_copy_waits(bytes, from, to, blocking)) ph_stream_synchronize(stream);
    ph_host_pause();
    bool read = from == PH_DEVICE && to != PH_DEVICE,
         recorded = read && ph_replay_read(source, bytes, !ph_scalar_readback_exact(bytes));
    bool number = read && !recorded && ph_scalar_readback(destination, bytes);
    if (!number && ph_move(destination, source, bytes)) ph_count_undefined_read();
    PH_TRACE_END();
    ph_host_resume();
    return CUDA_OK;
}

static int set(void *destination, int value, size_t bytes, void *handle, bool blocking)
{
    int device;
    struct ph_stream *stream = ph_stream_resolve(handle);
    int captured = PH_CAPTURING(stream);
    if (captured > 0) return captured;
    ph_host_call(PH_CALL_MEMSET);
    if (bytes == 0) return CUDA_OK;
    int to = kind_of(destination, &device);
    if (captured)
        return capture_rows(stream, PH_MEMORY_SET, 0, to,
                            (struct rows){destination, NULL, bytes, bytes, bytes, 1, value});
    memory_work(1, bytes, 0, to, stream);
    if (blocking && to != PH_DEVICE) ph_stream_synchronize(stream);
    ph_host_pause();
    ph_fill(destination, value, bytes);
    PH_TRACE_END();
    ph_host_resume();
    return CUDA_OK;
}

/* ---- allocation ---- */
PH_API(int, cudaMalloc, (void **pointer, size_t bytes))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    int refused = PH_UNSAFE();
    if (refused) return ph_set_error(refused);
    ph_host_call(PH_CALL_MALLOC);
    *pointer = ph_device_alloc(ph_device_current(), bytes);
    return ph_set_error(*pointer || bytes == 0 ? CUDA_OK : CUDA_OUT_OF_MEMORY);
}

PH_API(int, cudaFree, (void *pointer))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    int refused = pointer ? PH_UNSAFE() : 0;
    if (refused) return ph_set_error(refused);
    ph_host_call(PH_CALL_FREE);
    if (!pointer) return CUDA_OK;
    ph_device_synchronize(ph_pointer_device(pointer)); /* cudaFree waits for the device */
    return ph_set_error(ph_device_free(pointer) ? CUDA_OK : CUDA_INVALID_VALUE);
}

PH_API(int, cudaMemGetInfo, (size_t *free_bytes, size_t *total_bytes))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    uint64_t free_now, total;
    ph_touch();
    ph_device_memory(ph_device_current(), &free_now, &total);
    *free_bytes = free_now, *total_bytes = total;
    return CUDA_OK;
}

PH_API(int, cudaHostAlloc, (void **pointer, size_t bytes, unsigned flags))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    (void)flags;
    ph_host_call(PH_CALL_MALLOC);
    *pointer = bytes ? ph_pinned_alloc(bytes) : NULL;
    return ph_set_error(*pointer || bytes == 0 ? CUDA_OK : CUDA_OUT_OF_MEMORY);
}
PH_API(int, cudaMallocHost, (void **pointer, size_t bytes))
{
    return cudaHostAlloc(pointer, bytes, 0);
}

PH_API(int, cudaFreeHost, (void *pointer))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (ph_touched()) ph_host_call(PH_CALL_FREE);
    return ph_set_error(!pointer || ph_pinned_free(pointer) ? CUDA_OK : CUDA_INVALID_VALUE);
}

PH_API(int, cudaHostRegister, (void *pointer, size_t bytes, unsigned flags))
{
    (void)flags;
    struct ph_allocation found;
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_touch();
    if (!pointer || !bytes) return ph_set_error(CUDA_INVALID_VALUE);
    if (ph_find(pointer, &found)) return ph_set_error(CUDA_HOST_ALREADY_REGISTERED);
    ph_pinned_register(pointer, bytes);
    return CUDA_OK;
}

PH_API(int, cudaHostUnregister, (void *pointer))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    return ph_set_error(ph_pinned_unregister(pointer) ? CUDA_OK : CUDA_HOST_NOT_REGISTERED);
}

PH_API(int, cudaHostGetDevicePointer, (void **device, void *host, unsigned flags))
{
    struct ph_allocation found;
    (void)flags;
    if (!ph_find(host, &found) || found.kind != PH_PINNED) return ph_set_error(CUDA_INVALID_VALUE);
    *device = host;
    return CUDA_OK;
}

struct pointer_attributes { /* cudaPointerAttributes; CUDA 13 has added reserved members */
    int type, device;
    void *device_pointer, *host_pointer;
};

static int pointer_attributes(int major, struct pointer_attributes *attributes, const void *pointer)
{
    struct ph_allocation found;
    enum { UNREGISTERED, HOST, DEVICE };
    memset(attributes, 0, ph_pointer_attributes_bytes(major));
    if (ph_find(pointer, &found)) {
        attributes->type = found.kind == PH_PINNED ? HOST : DEVICE;
        attributes->device = found.device < 0 ? 0 : found.device;
        attributes->device_pointer = (void *)pointer;
        attributes->host_pointer = found.kind == PH_PINNED ? (void *)pointer : NULL;
    } else {
        attributes->type = UNREGISTERED;
        attributes->device = -2; /* cudaInvalidDeviceId */
        attributes->host_pointer = (void *)pointer;
    }
    return CUDA_OK;
}
PH_API_12(int, cudaPointerGetAttributes, (void *attributes, const void *pointer))
{
    return pointer_attributes(12, attributes, pointer);
}
PH_API_13(int, cudaPointerGetAttributes, (void *attributes, const void *pointer))
{
    return pointer_attributes(13, attributes, pointer);
}

/* ---- copies and fills ---- */
static int checked_copy(void *destination, const void *source, size_t bytes, void *stream,
                        bool blocking)
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_touch();
    if (bytes && (!destination || !source)) return ph_set_error(CUDA_INVALID_VALUE);
    if (!ph_stream_resolve(stream)) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = blocking ? PH_UNSAFE() : 0;
    return ph_set_error(refused ? refused : ph_copy(destination, source, bytes, stream, blocking));
}

PH_API(int, cudaMemcpy, (void *destination, const void *source, size_t bytes, int kind))
{
    (void)kind; /* addresses are unified, so they tell the direction */
    return checked_copy(destination, source, bytes, NULL, true);
}
PH_API(int, cudaMemcpyAsync,
       (void *destination, const void *source, size_t bytes, int kind, void *stream))
{
    (void)kind;
    return checked_copy(destination, source, bytes, stream, false);
}
PH_API(int, cudaMemcpyPeerAsync,
       (void *destination, int to, const void *source, int from, size_t bytes, void *stream))
{
    (void)to, (void)from;
    return checked_copy(destination, source, bytes, stream, false);
}

PH_API(int, cudaMemcpyPeer, (void *destination, int to, const void *source, int from, size_t bytes))
{
    (void)to, (void)from;
    return checked_copy(destination, source, bytes, NULL, true);
}

static int copy_rows(char *destination, size_t to_pitch, const char *source, size_t from_pitch,
                     size_t width, size_t height, void *stream, bool blocking)
{
    int to_device, from_device;
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_touch();
    if (width > to_pitch || width > from_pitch) return ph_set_error(CUDA_INVALID_VALUE);
    struct ph_stream *resolved = ph_stream_resolve(stream);
    if (!resolved) return ph_set_error(CUDA_INVALID_HANDLE);
    if (!width || !height) return CUDA_OK;
    int captured = PH_CAPTURING(resolved), refused = blocking ? PH_UNSAFE() : 0;
    if (captured > 0 || refused) return ph_set_error(refused ? refused : captured);
    int to = kind_of(destination, &to_device), from = kind_of(source, &from_device);
    ph_host_call(PH_CALL_COPY);
    struct rows rows = {destination, source, to_pitch, from_pitch, width, height, 0};
    if (captured) return capture_rows(resolved, PH_MEMORY_COPY, from, to, rows);
    memory_work(0, width * height, from, to, resolved);
    if (blocking || to == PH_PAGEABLE || from == PH_PAGEABLE) ph_stream_synchronize(resolved);
    ph_host_pause();
    move_rows(&rows, resolved);
    PH_TRACE_END();
    ph_host_resume();
    return CUDA_OK;
}

PH_API(int, cudaMemcpy2DAsync,
       (void *destination, size_t to_pitch, const void *source, size_t from_pitch, size_t width,
        size_t height, int kind, void *stream))
{
    (void)kind;
    return copy_rows(destination, to_pitch, source, from_pitch, width, height, stream, false);
}
PH_API(int, cudaMemcpy2D,
       (void *destination, size_t to_pitch, const void *source, size_t from_pitch, size_t width,
        size_t height, int kind))
{
    (void)kind;
    return copy_rows(destination, to_pitch, source, from_pitch, width, height, NULL, true);
}

static int checked_set(void *destination, int value, size_t bytes, void *stream, bool blocking)
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_touch();
    if (bytes && !destination) return ph_set_error(CUDA_INVALID_VALUE);
    if (!ph_stream_resolve(stream)) return ph_set_error(CUDA_INVALID_HANDLE);
    return ph_set_error(set(destination, value, bytes, stream, blocking));
}
PH_API(int, cudaMemset, (void *destination, int value, size_t bytes))
{
    return checked_set(destination, value, bytes, NULL, true);
}
PH_API(int, cudaMemsetAsync, (void *destination, int value, size_t bytes, void *stream))
{
    return checked_set(destination, value, bytes, stream, false);
}
