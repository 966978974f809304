/* driver.c - the CUDA driver calls of PyTorch, Triton and Inductor: contexts, memory, streams,
 * errors.
 *
 * Why it exists: Triton and parts of PyTorch do not use the runtime. Error codes and handles are
 * the same in both APIs, as in CUDA, so most calls are the runtime's under another name. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "time/timeline.h"
#include "cudagraph/graph.h"
#include "work/cudart.h"
#include "simulated/cuda/runtime.h"
#include "simulated/cuda/versions.h"
#include "simulated/memory/memory.h"
#include "simulated/values/defined.h"
#include "simulated/values/dirty.h"
#include <stdatomic.h>

int cudaGetDeviceCount(int *), cudaMalloc(void **, size_t), cudaFree(void *),
    cudaMemGetInfo(size_t *, size_t *), cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *), cudaMemcpy(void *, const void *, size_t, int),
    cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemsetAsync(void *, int, size_t, void *),
    cudaStreamCreateWithPriority(void **, unsigned, int), cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *), cudaStreamQuery(void *),
    cudaStreamWaitEvent(void *, void *, unsigned);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventDestroy(void *),
    cudaEventRecord(void *, void *), cudaEventQuery(void *);
int cudaEventSynchronize(void *), cudaEventElapsedTime(float *, void *, void *),
    cudaDeviceSynchronize(void);
const char *cudaGetErrorString(int), *cudaGetErrorName(int);

/* ---- initialisation, errors ---- */
PH_API(int, cuInit, (unsigned flags))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    return flags ? CUDA_INVALID_VALUE : ph_device_count() ? CUDA_OK : 100;
}
PH_API(int, cuDriverGetVersion, (int *version)) { return *version = PH_DRIVER_VERSION, CUDA_OK; }
PH_API(int, cuGetErrorString, (int error, const char **text))
{
    return *text = cudaGetErrorString(error), CUDA_OK;
}
PH_API(int, cuGetErrorName, (int error, const char **text))
{
    return *text = cudaGetErrorName(error), CUDA_OK;
}

/* Private tables of the driver. NVRTC works without them. The static CUDA runtime inside cuFFT,
 * cuSPARSE and cuSOLVER does not, and reports an error of its own. */
PH_API(int, cuGetExportTable, (const void **table, const void *id))
{
    (void)id;
    *table = NULL;
    return CUDA_NOT_SUPPORTED;
}

PH_API(int, cuGetProcAddress_v2,
       (const char *name, void **function, int version, uint64_t flags, int *status))
{
    (void)flags;
    *function = ph_driver_symbol(name, version);
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_OK : CUDA_NOT_FOUND;
}
PH_API(int, cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags))
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* ---- devices and contexts: each device has one primary context, whose address is its element here
 * ---- */
enum { DEVICES = 8 };
static struct {
    _Atomic int retained;
} contexts[DEVICES];

static int device_of(const void *context)
{
    for (int i = 0; i < DEVICES; i++)
        if (context == &contexts[i]) return i;
    return -1;
}

void ph_device_use(int device)
{
    atomic_store_explicit(&contexts[device].retained, 1, memory_order_relaxed);
}

PH_API(int, cuDeviceGet, (int *device, int ordinal))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= ph_device_count()) return CUDA_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_OK;
}
PH_API(int, cuDeviceGetCount, (int *count))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    return *count = ph_device_count(), CUDA_OK;
}

PH_API(int, cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active))
{
    if (device < 0 || device >= ph_device_count()) return CUDA_INVALID_DEVICE;
    if (flags) *flags = 0;
    *active = atomic_load_explicit(&contexts[device].retained, memory_order_relaxed);
    return CUDA_OK;
}
PH_API(int, cuDevicePrimaryCtxRetain, (void **context, int device))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (device < 0 || device >= ph_device_count()) return CUDA_INVALID_DEVICE;
    ph_device_use(device);
    *context = &contexts[device];
    return CUDA_OK;
}
PH_API(int, cuDevicePrimaryCtxRelease_v2, (int device))
{
    return device >= 0 && device < ph_device_count() ? CUDA_OK : CUDA_INVALID_DEVICE;
}
#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cuDevicePrimaryCtxSetFlags_v2, (int device, unsigned flags))
{
    (void)flags;
    return device >= 0 && device < ph_device_count() ? CUDA_OK : CUDA_INVALID_DEVICE;
}
#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
PH_API(int, cuCtxGetCurrent, (void **context))
{
    int device = ph_device_current();
    *context = atomic_load_explicit(&contexts[device].retained, memory_order_relaxed)
                   ? &contexts[device]
                   : NULL;
    return CUDA_OK;
}
PH_API(int, cuCtxSetCurrent, (void *context))
{
    int device = device_of(context);
    if (context && device < 0) return CUDA_INVALID_CONTEXT;
    if (context) ph_device_set(device);
    return CUDA_OK;
}
static _Thread_local int context_stack[16], context_depth;
PH_API(int, cuCtxPushCurrent_v2, (void *context))
{
    if (device_of(context) < 0 || context_depth >= 16) return CUDA_INVALID_CONTEXT;
    context_stack[context_depth++] = ph_device_current();
    ph_device_set(device_of(context));
    return CUDA_OK;
}
PH_API(int, cuCtxPopCurrent_v2, (void **context))
{
    if (context_depth == 0) return CUDA_INVALID_CONTEXT;
    if (context) *context = &contexts[ph_device_current()];
    ph_device_set(context_stack[--context_depth]);
    return CUDA_OK;
}
PH_API(int, cuCtxGetDevice, (int *device)) { return *device = ph_device_current(), CUDA_OK; }
PH_API(int, cuCtxGetDevice_v2, (int *device, void *context))
{
    int of = context ? device_of(context) : ph_device_current();
    if (!device || of < 0) return device ? CUDA_INVALID_CONTEXT : CUDA_INVALID_VALUE;
    return *device = of, CUDA_OK;
}
PH_API(int, cuCtxSynchronize, (void)) { return cudaDeviceSynchronize(); }
PH_API(int, cuCtxSynchronize_v2, (void *context))
{
    int device = context ? device_of(context) : ph_device_current();
    int refused = device < 0 ? CUDA_INVALID_CONTEXT : PH_UNSAFE();
    if (!refused && atomic_load(&ph_captures)) refused = ph_capture_forbids_device(device);
    if (refused) return refused;
    ph_device_synchronize(device);
    return CUDA_OK;
}

/* Limits that Triton sets and reads back: stack size (0), printf buffer (1), malloc heap (2). The
 * defaults are an H200's. */
static size_t limits[8] = {1024, 7340032, 8388608};
PH_API(int, cuCtxGetLimit, (size_t *value, int limit))
{
    if (limit < 0 || limit > 2) return CUDA_NOT_SUPPORTED;
    *value = limits[limit];
    return CUDA_OK;
}
PH_API(int, cuCtxSetLimit, (int limit, size_t value))
{
    if (limit < 0 || limit > 2) return CUDA_NOT_SUPPORTED;
    limits[limit] = value;
    return CUDA_OK;
}

/* ---- memory ---- */
PH_API(int, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))
{
    return cudaMemGetInfo(free_bytes, total_bytes);
}
PH_API(int, cuMemAlloc_v2, (void **pointer, size_t bytes)) { return cudaMalloc(pointer, bytes); }
PH_API(int, cuMemFree_v2, (void *pointer)) { return cudaFree(pointer); }
PH_API(int, cuMemHostAlloc, (void **pointer, size_t bytes, unsigned flags))
{
    return cudaHostAlloc(pointer, bytes, flags);
}
PH_API(int, cuMemFreeHost, (void *pointer)) { return cudaFreeHost(pointer); }
PH_API(int, cuMemcpyHtoD_v2, (void *destination, const void *source, size_t bytes))
{
    return cudaMemcpy(destination, source, bytes, 1);
}
PH_API(int, cuMemcpyDtoH_v2, (void *destination, const void *source, size_t bytes))
{
    return cudaMemcpy(destination, source, bytes, 2);
}
PH_API(int, cuMemcpyHtoDAsync_v2,
       (void *destination, const void *source, size_t bytes, void *stream))
{
    return cudaMemcpyAsync(destination, source, bytes, 1, stream);
}
PH_API(int, cuMemcpyDtoHAsync_v2,
       (void *destination, const void *source, size_t bytes, void *stream))
{
    return cudaMemcpyAsync(destination, source, bytes, 2, stream);
}
PH_API(int, cuMemcpyDtoDAsync_v2,
       (void *destination, const void *source, size_t bytes, void *stream))
{
    return cudaMemcpyAsync(destination, source, bytes, 3, stream);
}
PH_API(int, cuMemcpyAsync, (void *destination, const void *source, size_t bytes, void *stream))
{
    return cudaMemcpyAsync(destination, source, bytes, 4, stream);
}
PH_API(int, cuMemsetD8Async, (void *destination, unsigned char value, size_t count, void *stream))
{
    return cudaMemsetAsync(destination, value, count, stream);
}
PH_API(int, cuMemsetD32Async, (uint32_t *destination, unsigned value, size_t count, void *stream))
{
    int error = cudaMemsetAsync(destination, 0, count * 4, stream);
    if (!error && value && count * 4 <= PH_COPY_BYTES)
        ph_mark_dirty(destination, count * 4);
    else if (!error && value)
        ph_mark_undefined(destination, count * 4);
    for (size_t i = 0; !error && value && i < count && count * 4 <= PH_COPY_BYTES; i++)
        destination[i] = value;
    return error;
}

PH_API(int, cuMemGetAddressRange_v2, (void **base, size_t *bytes, void *pointer))
{
    struct ph_allocation found;
    if (!ph_find(pointer, &found)) return CUDA_NOT_FOUND;
    if (base) *base = (void *)found.base;
    if (bytes) *bytes = found.bytes;
    return CUDA_OK;
}

PH_API(int, cuPointerGetAttribute, (void *data, int attribute, void *pointer))
{
    enum {
        CONTEXT = 1,
        MEMORY_TYPE = 2,
        DEVICE_POINTER = 3,
        HOST_POINTER = 4,
        SYNC_MEMOPS = 6,
        BUFFER_ID = 7,
        IS_MANAGED = 8,
        ORDINAL = 9,
        RANGE_START = 11,
        RANGE_SIZE = 12
    };
    struct ph_allocation found;
    if (!ph_find(pointer, &found)) return CUDA_INVALID_VALUE;
    int device = found.device < 0 ? 0 : found.device;
    switch (attribute) {
    case CONTEXT: *(void **)data = &contexts[device]; return CUDA_OK;
    case MEMORY_TYPE: *(unsigned *)data = found.kind == PH_PINNED ? 1 : 2; return CUDA_OK;
    case DEVICE_POINTER: *(void **)data = pointer; return CUDA_OK;
    case HOST_POINTER:
        if (found.kind != PH_PINNED) return CUDA_INVALID_VALUE;
        *(void **)data = pointer;
        return CUDA_OK;
    case SYNC_MEMOPS: *(unsigned *)data = 0; return CUDA_OK;
    case BUFFER_ID: *(uint64_t *)data = found.id; return CUDA_OK;
    case IS_MANAGED: *(unsigned *)data = 0; return CUDA_OK;
    case ORDINAL: *(int *)data = device; return CUDA_OK;
    case RANGE_START: *(uintptr_t *)data = found.base; return CUDA_OK;
    case RANGE_SIZE: *(size_t *)data = found.bytes; return CUDA_OK;
    default: ph_unsupported("cuPointerGetAttribute (this attribute)"); return CUDA_NOT_SUPPORTED;
    }
}

/* ---- streams and events ---- */
PH_API(int, cuStreamCreate, (void **stream, unsigned flags))
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
PH_API(int, cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))
{
    return cudaStreamCreateWithPriority(stream, flags, priority);
}
PH_API(int, cuStreamDestroy_v2, (void *stream)) { return cudaStreamDestroy(stream); }
PH_API(int, cuStreamSynchronize, (void *stream)) { return cudaStreamSynchronize(stream); }
PH_API(int, cuStreamQuery, (void *stream)) { return cudaStreamQuery(stream); }
PH_API(int, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))
{
    return cudaStreamWaitEvent(stream, event, flags);
}
PH_API(int, cuStreamGetCtx, (void *handle, void **context))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return CUDA_INVALID_HANDLE;
    *context = &contexts[stream->device];
    return CUDA_OK;
}
PH_API(int, cuEventCreate, (void **event, unsigned flags))
{
    return cudaEventCreateWithFlags(event, flags);
}
PH_API(int, cuEventDestroy_v2, (void *event)) { return cudaEventDestroy(event); }
PH_API(int, cuEventRecord, (void *event, void *stream)) { return cudaEventRecord(event, stream); }
PH_API(int, cuEventQuery, (void *event)) { return cudaEventQuery(event); }
PH_API(int, cuEventSynchronize, (void *event)) { return cudaEventSynchronize(event); }
PH_API(int, cuEventElapsedTime_v2, (float *milliseconds, void *start, void *end))
{
    return cudaEventElapsedTime(milliseconds, start, end);
}
PH_API(int, cuEventElapsedTime, (float *milliseconds, void *start, void *end))
{
    return cudaEventElapsedTime(milliseconds, start, end);
}
