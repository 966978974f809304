/* copies.c - copies and fills, observed on their way to the GPU, and the host costs of allocation.
 *
 * Why it exists: a copy's signature depends on where its bytes lie, which the real library knows.
 * The simulated rank's own rule (ph_copy_waits) decides whether the host waits, so that both wait
 * at the same points of simulated time. Memory belongs to the real library: allocations are passed
 * on with the host cost and the waits of a simulated rank. */
#include "base/api.h"
#include "work/signature.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include "leader/measure/measure.h"

enum { OUT_OF_MEMORY = 2 };
struct observed { /* a call between before() and after() */
    uint64_t token;
    void *stream;
    bool seen, waits;
    const void *read; /* host memory that receives what the GPU computed */
    size_t bytes;
    bool there; /* it is there as soon as the call returns */
};

static struct observed before(int op, uint64_t bytes, int from, int to, void *stream, bool waits)
{
    static _Thread_local struct ph_signature signature;
    struct observed call = {.stream = stream, .seen = true, .waits = waits};
    ph_memory_signature(&signature, op, bytes, from, to);
    if (waits) ph_lead_settle(stream);
    call.token = ph_lead_begin(stream, &signature);
    return call;
}

static int after(struct observed call, int error)
{
    if (!call.seen) return error;
    if (error)
        ph_lead_cancel(call.token);
    else
        ph_lead_end(call.token);
    if (!error && call.read) ph_lead_keep_read(call.read, call.bytes, call.stream, call.there);
    if (!error && call.waits) ph_stream_synchronize(ph_shadow_stream(call.stream));
    ph_leave();
    return error;
}

static bool passes(uint64_t bytes, void *stream)
{
    return bytes == 0 || ph_lead_inside() || ph_lead_capturing(stream);
}

static struct observed copy(void *destination, const void *source, uint64_t bytes, void *stream,
                            bool blocking)
{
    if (passes(bytes, stream)) return (struct observed){0};
    ph_host_pause();
    int to = (int)ph_lead_memory_kind(destination), from = (int)ph_lead_memory_kind(source);
    ph_host_resume();
    struct observed call =
        before(PH_MEMORY_COPY, bytes, from, to, stream, ph_copy_waits(bytes, from, to, blocking));
    if (from == PH_DEVICE && to != PH_DEVICE)
        call.read = destination, call.bytes = bytes, call.there = blocking || to == PH_PAGEABLE;
    return call;
}

static struct observed fill(void *destination, uint64_t bytes, void *stream, bool blocking)
{
    if (passes(bytes, stream)) return (struct observed){0};
    ph_host_pause();
    int to = (int)ph_lead_memory_kind(destination);
    ph_host_resume();
    return before(PH_MEMORY_SET, bytes, 0, to, stream, blocking && to != PH_DEVICE);
}

#define COPY(destination, source, bytes, stream, blocking, call)                                  \
    (__extension__({                                                                              \
        struct observed observed_ = copy((destination), (source), (bytes), (stream), (blocking)); \
        after(observed_, PH_REAL_TIMED(PH_CALL_COPY, call));                                      \
    }))
#define FILL(destination, bytes, stream, blocking, call)                                \
    (__extension__({                                                                    \
        struct observed observed_ = fill((destination), (bytes), (stream), (blocking)); \
        after(observed_, PH_REAL_TIMED(PH_CALL_MEMSET, call));                          \
    }))

/* ---- the runtime ---- */
PH_API(int, cudaMemcpy, (void *to, const void *from, size_t bytes, int kind))
{
    return COPY(to, from, bytes, NULL, true, PH_REAL(cudaMemcpy)(to, from, bytes, kind));
}
PH_API(int, cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *stream))
{
    return COPY(to, from, bytes, stream, false,
                PH_REAL(cudaMemcpyAsync)(to, from, bytes, kind, stream));
}

/* Between logical devices, which are one real device. */
PH_API(int, cudaMemcpyPeerAsync,
       (void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream))
{
    struct observed call = {0};
    if (!passes(bytes, stream))
        call =
            before(PH_MEMORY_COPY, bytes, to_device == from_device ? (int)PH_DEVICE : (int)PH_PEER,
                   PH_DEVICE, stream, false);
    return after(call, PH_REAL_TIMED(PH_CALL_COPY,
                                     PH_REAL(cudaMemcpyPeerAsync)(to, PH_REAL_DEVICE, from,
                                                                  PH_REAL_DEVICE, bytes, stream)));
}

static struct observed copy_rows(void *to, const void *from, size_t width, size_t height,
                                 void *stream, bool blocking)
{
    if (passes(width * height, stream)) return (struct observed){0};
    ph_host_pause();
    int there = (int)ph_lead_memory_kind(to), here = (int)ph_lead_memory_kind(from);
    ph_host_resume();
    return before(PH_MEMORY_COPY, width * height, here, there, stream,
                  blocking || there == PH_PAGEABLE || here == PH_PAGEABLE);
}
PH_API(int, cudaMemcpy2DAsync,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
        int kind, void *stream))
{
    struct observed call = copy_rows(to, from, width, height, stream, false);
    return after(
        call, PH_REAL_TIMED(PH_CALL_COPY, PH_REAL(cudaMemcpy2DAsync)(to, to_pitch, from, from_pitch,
                                                                     width, height, kind, stream)));
}
PH_API(int, cudaMemcpy2D,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
        int kind))
{
    struct observed call = copy_rows(to, from, width, height, NULL, true);
    return after(call,
                 PH_REAL_TIMED(PH_CALL_COPY, PH_REAL(cudaMemcpy2D)(to, to_pitch, from, from_pitch,
                                                                   width, height, kind)));
}

PH_API(int, cudaMemcpyToSymbol,
       (const void *symbol, const void *from, size_t bytes, size_t offset, int kind))
{
    struct observed call = {0};
    if (!passes(bytes, NULL)) {
        int here = (int)ph_lead_memory_kind(from);
        call = before(PH_MEMORY_COPY, bytes, here, PH_DEVICE, NULL,
                      ph_copy_waits(bytes, here, PH_DEVICE, true));
    }
    return after(call, PH_REAL_TIMED(PH_CALL_COPY, PH_REAL(cudaMemcpyToSymbol)(symbol, from, bytes,
                                                                               offset, kind)));
}

PH_API(int, cudaMemset, (void *to, int value, size_t bytes))
{
    return FILL(to, bytes, NULL, true, PH_REAL(cudaMemset)(to, value, bytes));
}
PH_API(int, cudaMemsetAsync, (void *to, int value, size_t bytes, void *stream))
{
    return FILL(to, bytes, stream, false, PH_REAL(cudaMemsetAsync)(to, value, bytes, stream));
}

/* ---- the driver: the calls that a simulated rank answers (simulated/cuda/driver.c) ---- */
PH_API(int, cuMemcpyHtoD_v2, (void *to, const void *from, size_t bytes))
{
    return COPY(to, from, bytes, NULL, true, PH_REAL(cuMemcpyHtoD_v2)(to, from, bytes));
}
PH_API(int, cuMemcpyDtoH_v2, (void *to, const void *from, size_t bytes))
{
    return COPY(to, from, bytes, NULL, true, PH_REAL(cuMemcpyDtoH_v2)(to, from, bytes));
}
PH_API(int, cuMemcpyHtoDAsync_v2, (void *to, const void *from, size_t bytes, void *stream))
{
    return COPY(to, from, bytes, stream, false,
                PH_REAL(cuMemcpyHtoDAsync_v2)(to, from, bytes, stream));
}
PH_API(int, cuMemcpyDtoHAsync_v2, (void *to, const void *from, size_t bytes, void *stream))
{
    return COPY(to, from, bytes, stream, false,
                PH_REAL(cuMemcpyDtoHAsync_v2)(to, from, bytes, stream));
}
PH_API(int, cuMemcpyDtoDAsync_v2, (void *to, const void *from, size_t bytes, void *stream))
{
    return COPY(to, from, bytes, stream, false,
                PH_REAL(cuMemcpyDtoDAsync_v2)(to, from, bytes, stream));
}
PH_API(int, cuMemcpyAsync, (void *to, const void *from, size_t bytes, void *stream))
{
    return COPY(to, from, bytes, stream, false, PH_REAL(cuMemcpyAsync)(to, from, bytes, stream));
}
PH_API(int, cuMemsetD8Async, (void *to, unsigned char value, size_t count, void *stream))
{
    return FILL(to, count, stream, false, PH_REAL(cuMemsetD8Async)(to, value, count, stream));
}
PH_API(int, cuMemsetD32Async, (void *to, unsigned value, size_t count, void *stream))
{
    return FILL(to, count * 4, stream, false, PH_REAL(cuMemsetD32Async)(to, value, count, stream));
}

/* ---- memory: cost classes as in copies.c, driver.c and virtual.c of simulated/ ---- */
#define CHARGED(class, call)                       \
    (__extension__({                               \
        ph_host_call(class);                       \
        int error_ = PH_REAL_TIMED((class), call); \
        ph_leave();                                \
        error_;                                    \
    }))
/* Tries again if the GPU load's own memory could be freed (error 2 in the runtime and in the
 * driver). */
#define WITH_ROOM(call)                                                    \
    (__extension__({                                                       \
        int first_ = (call);                                               \
        first_ == OUT_OF_MEMORY &&ph_gpu_load_release() ? (call) : first_; \
    }))
/* Freeing waits for the device, simulated and real; the simulated wait comes first (streams.c). */
#define FREED(pointer, call)                                     \
    (__extension__({                                             \
        ph_host_call(PH_CALL_FREE);                              \
        if (pointer) ph_device_synchronize(ph_device_current()); \
        int error_ = PH_REAL_TIMED(PH_CALL_FREE, call);          \
        ph_leave();                                              \
        error_;                                                  \
    }))

PH_API(int, cudaMalloc, (void **pointer, size_t bytes))
{
    return CHARGED(PH_CALL_MALLOC, WITH_ROOM(PH_REAL(cudaMalloc)(pointer, bytes)));
}
PH_API(int, cudaFree, (void *pointer)) { return FREED(pointer, PH_REAL(cudaFree)(pointer)); }
PH_API(int, cudaMallocAsync, (void **pointer, size_t bytes, void *stream))
{
    return CHARGED(PH_CALL_WAIT, PH_REAL(cudaMallocAsync)(pointer, bytes, stream));
}
PH_API(int, cudaFreeAsync, (void *pointer, void *stream))
{
    return CHARGED(PH_CALL_WAIT, PH_REAL(cudaFreeAsync)(pointer, stream));
}
PH_API(int, cudaHostAlloc, (void **pointer, size_t bytes, unsigned flags))
{
    return CHARGED(PH_CALL_MALLOC, PH_REAL(cudaHostAlloc)(pointer, bytes, flags));
}
PH_API(int, cudaMallocHost, (void **pointer, size_t bytes))
{
    return CHARGED(PH_CALL_MALLOC, PH_REAL(cudaMallocHost)(pointer, bytes));
}
PH_API(int, cudaFreeHost, (void *pointer))
{
    if (!ph_touched()) return PH_REAL(cudaFreeHost)(pointer);
    return CHARGED(PH_CALL_FREE, PH_REAL(cudaFreeHost)(pointer));
}
PH_API(int, cuMemAlloc_v2, (void **pointer, size_t bytes))
{
    return CHARGED(PH_CALL_MALLOC, WITH_ROOM(PH_REAL(cuMemAlloc_v2)(pointer, bytes)));
}
PH_API(int, cuMemFree_v2, (void *pointer))
{
    return FREED(pointer, PH_REAL(cuMemFree_v2)(pointer));
}
PH_API(int, cuMemUnmap, (void *pointer, size_t bytes))
{
    return CHARGED(PH_CALL_FREE, PH_REAL(cuMemUnmap)(pointer, bytes));
}
