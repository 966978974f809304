/* cudart.c - the CUDA runtime's devices, streams, events and errors.
 *
 * Why it exists: it translates the runtime's ABI into calls of the timeline. Calls that only ask
 * (cudaGetDevice) cost nanoseconds: no lock, no clock, no message. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "work/values_library.h"
#include "cudagraph/graph.h"
#include "simulated/cuda/runtime.h"
#include "simulated/cuda/versions.h"
#include "simulated/memory/ipc.h"
#include "time/watchdog.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */
static _Thread_local int last_error;

int ph_set_error(int error)
{
    /* whatever else is wrong: no stream and no pointer is valid here */
    if (error != CUDA_OK && ph_forked()) error = CUDA_NOT_INITIALIZED;
    if (error != CUDA_OK && error != CUDA_NOT_READY) last_error = error;
    return error;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {301, "cudaErrorFileNotFound", "file not found"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {712, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {902, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {903, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {904, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {906, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {908, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

PH_API(const char *, cudaGetErrorName, (int error))
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return errors[i].name;
    return "unrecognized error code";
}
PH_API(const char *, cudaGetErrorString, (int error))
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return errors[i].text;
    return "unrecognized error code";
}
PH_API(int, cudaGetLastError, (void))
{
    int error = last_error;
    last_error = CUDA_OK;
    return error;
}
PH_API(int, cudaPeekAtLastError, (void)) { return last_error; }

/* ---- devices ---- */
PH_API(int, cudaGetDeviceCount, (int *count))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    *count = ph_device_count();
    /* torch calls this when it initialises, before its first operator on a device */
    ph_values_load();
    return ph_set_error(*count ? CUDA_OK : 100);
}
PH_API(int, cudaGetDevice, (int *device))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    *device = ph_device_current();
    return CUDA_OK;
}
PH_API(int, cudaSetDevice, (int device))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (device < 0 || device >= ph_device_count()) return ph_set_error(CUDA_INVALID_DEVICE);
    ph_device_set(device);
    ph_device_use(device);
    return CUDA_OK;
}
PH_API(int, cudaDeviceSynchronize, (void))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    int refused = atomic_load(&ph_captures) ? ph_capture_forbids_device(ph_device_current()) : 0;
    if (!refused) refused = PH_UNSAFE();
    if (refused) return ph_set_error(refused);
    ph_device_synchronize(ph_device_current());
    return CUDA_OK;
}
PH_API(int, cudaDriverGetVersion, (int *version)) { return *version = PH_DRIVER_VERSION, CUDA_OK; }
PH_API_12(int, cudaRuntimeGetVersion, (int *version))
{
    return *version = ph_runtime_version(12), CUDA_OK;
}
PH_API_13(int, cudaRuntimeGetVersion, (int *version))
{
    return *version = ph_runtime_version(13), CUDA_OK;
}
PH_API(int, cudaDeviceEnablePeerAccess, (int peer, unsigned flags))
{
    /* access is always allowed: all devices share one address space, as on a real node */
    (void)flags;
    return ph_set_error(peer >= 0 && peer < ph_device_count() ? CUDA_OK : CUDA_INVALID_DEVICE);
}
#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cudaProfilerStart, (void)) { return CUDA_OK; }
PH_API(int, cudaProfilerStop, (void)) { return CUDA_OK; }

#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
/* ---- streams ---- */
PH_API(int, cudaStreamCreateWithPriority, (void **stream, unsigned flags, int priority))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    *stream = ph_stream_create(ph_device_current(), flags, priority);
    return CUDA_OK;
}
PH_API(int, cudaStreamCreateWithFlags, (void **stream, unsigned flags))
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
PH_API(int, cudaStreamCreate, (void **stream))
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
PH_API(int, cudaStreamDestroy, (void *stream))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (!ph_stream_valid(stream)) return ph_set_error(CUDA_INVALID_HANDLE);
    ph_capture_forget(stream);
    return ph_set_error(ph_stream_destroy(stream) ? CUDA_OK : CUDA_INVALID_HANDLE);
}

PH_API(int, cudaStreamGetPriority, (void *handle, int *priority))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    *priority = stream->priority;
    return CUDA_OK;
}
PH_API(int, cudaStreamGetFlags, (void *handle, unsigned *flags))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    *flags = stream->flags;
    return CUDA_OK;
}
PH_API(int, cudaStreamGetId, (void *handle, unsigned long long *id))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    *id = stream->id;
    return CUDA_OK;
}
PH_API(int, cudaStreamGetDevice, (void *handle, int *device))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    *device = stream->device;
    return CUDA_OK;
}
PH_API(int, cudaStreamSynchronize, (void *handle))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = atomic_load(&ph_captures) ? ph_capture_forbids_stream(stream) : 0;
    if (refused) return ph_set_error(refused);
    ph_stream_synchronize(stream);
    return CUDA_OK;
}
PH_API(int, cudaStreamQuery, (void *handle))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = atomic_load(&ph_captures) ? ph_capture_forbids_stream(stream) : 0;
    if (refused) return ph_set_error(refused);
    return ph_stream_ready(stream) ? CUDA_OK : CUDA_NOT_READY;
}
PH_API(int, cudaStreamWaitEvent, (void *handle, void *event, unsigned flags))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    enum { EXTERNAL = 1 };
    if (!stream || !ph_event_valid(event)) return ph_set_error(CUDA_INVALID_HANDLE);
    int captured = ((struct ph_event *)event)->captured || atomic_load(&ph_captures)
                       ? ph_capture_wait(stream, event, flags & EXTERNAL)
                       : 0;
    if (captured) return ph_capture_called(PH_CALL_WAIT, "cudaStreamWaitEvent", captured);
    if (((struct ph_event *)event)->shared) ph_ipc_look(event);
    ph_stream_wait(stream, event);
    return CUDA_OK;
}

/* A GPU runs host functions in stream order. Here a stream's values are computed when its work is
 * issued, so running the function now keeps the order. It runs on its own thread, as CUDA's do,
 * because it may take locks that the caller holds. */
struct host_call {
    void (*plain)(void *);
    void (*callback)(void *, int, void *);
    void *stream, *data;
};
static void *host_call(void *argument)
{
    struct host_call call = *(struct host_call *)argument;
    free(argument);
    if (call.plain)
        call.plain(call.data);
    else
        call.callback(call.stream, CUDA_OK, call.data);
    return NULL;
}
static int start_host_call(struct host_call call);
static void repeat_host_call(void *data, struct ph_stream *stream) /* at a launch of a graph */
{
    struct host_call call = *(struct host_call *)data;
    call.stream = stream;
    start_host_call(call);
}
static int start_host_call(struct host_call call)
{
    struct ph_stream *stream = ph_stream_resolve(call.stream);
    pthread_t thread;
    int captured = stream ? PH_CAPTURING(stream) : 0;
    if (!stream || captured > 0) return ph_set_error(stream ? captured : CUDA_INVALID_HANDLE);
    struct host_call *copy = malloc(sizeof *copy);
    if (!copy) ph_die("out of host memory");
    *copy = call;
    ph_host_call(PH_CALL_LAUNCH);
    /* CUDA's documentation: "not supported with cudaStreamBeginCapture" */
    if (captured && call.callback) {
        free(copy);
        ph_capture_forbids_stream(stream);
        return ph_set_error(PH_CAPTURE_UNSUPPORTED);
    }
    if (captured) {
        ph_capture_op(stream, PH_GRAPH_OP_HOST, NULL, NULL,
                      (struct ph_action){repeat_host_call, free, copy});
        return CUDA_OK;
    }
    if (pthread_create(&thread, NULL, host_call, copy) != 0)
        return free(copy), ph_set_error(CUDA_OUT_OF_MEMORY);
    pthread_detach(thread);
    return CUDA_OK;
}
PH_API(int, cudaLaunchHostFunc, (void *stream, void (*function)(void *), void *data))
{
    return start_host_call((struct host_call){function, NULL, stream, data});
}
PH_API(int, cudaStreamAddCallback,
       (void *stream, void (*callback)(void *, int, void *), void *data, unsigned flags))
{
    (void)flags;
    return start_host_call((struct host_call){NULL, callback, stream, data});
}

/* ---- events ---- */
PH_API(int, cudaEventCreateWithFlags, (void **event, unsigned flags))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    *event = ph_event_create(flags);
    return CUDA_OK;
}
PH_API(int, cudaEventCreate, (void **event)) { return cudaEventCreateWithFlags(event, 0); }
PH_API(int, cudaEventDestroy, (void *event))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (ph_event_valid(event) && ((struct ph_event *)event)->shared) ph_ipc_gone(event);
    return ph_set_error(ph_event_destroy(event) ? CUDA_OK : CUDA_INVALID_HANDLE);
}
PH_API(int, cudaEventRecordWithFlags, (void *event, void *handle, unsigned flags))
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    enum { EXTERNAL = 1 };
    if (!stream || !ph_event_valid(event)) return ph_set_error(CUDA_INVALID_HANDLE);
    int captured = ((struct ph_event *)event)->captured || atomic_load(&ph_captures)
                       ? ph_capture_record(event, stream, flags & EXTERNAL)
                       : 0;
    if (captured) return ph_capture_called(PH_CALL_RECORD, "cudaEventRecord", captured);
    /* only the owner may record it */
    if (((struct ph_event *)event)->imported) return ph_set_error(CUDA_INVALID_HANDLE);
    ph_watchdogs_due(PH_WATCHDOG_NCCL2);
    ph_event_record(event, stream);
    if (((struct ph_event *)event)->shared) ph_ipc_recorded(event);
    return CUDA_OK;
}
PH_API(int, cudaEventRecord, (void *event, void *stream))
{
    return cudaEventRecordWithFlags(event, stream, 0);
}
static int forbidden(const struct ph_event *event)
{
    return event->captured || atomic_load(&ph_captures) ? ph_capture_forbids_event(event) : 0;
}

PH_API(int, cudaEventQuery, (void *event))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (!ph_event_valid(event)) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = forbidden(event);
    if (refused) return ph_set_error(refused);
    if (((struct ph_event *)event)->shared) ph_ipc_look(event);
    return ph_event_ready(event) ? CUDA_OK : CUDA_NOT_READY;
}
PH_API(int, cudaEventSynchronize, (void *event))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (!ph_event_valid(event)) return ph_set_error(CUDA_INVALID_HANDLE);
    int refused = forbidden(event);
    if (refused) return ph_set_error(refused);
    if (((struct ph_event *)event)->shared) ph_ipc_look(event);
    ph_event_synchronize(event);
    return CUDA_OK;
}
PH_API(int, cudaEventElapsedTime, (float *milliseconds, void *start, void *end))
{
    enum { DISABLE_TIMING = 2 };
    struct ph_event *from = start, *to = end;
    if (ph_event_valid(from) && ph_event_valid(to) && (from->captured || to->captured))
        return ph_set_error(PH_CAPTURED_EVENT);
    if (!ph_event_valid(from) || !ph_event_valid(to) || !from->recorded || !to->recorded ||
        ((from->flags | to->flags) & DISABLE_TIMING))
        return ph_set_error(CUDA_INVALID_HANDLE);
    return ph_event_elapsed(from, to, milliseconds) ? CUDA_OK : CUDA_NOT_READY;
}
PH_API(int, cudaEventElapsedTime_v2, (float *milliseconds, void *start, void *end)) /* CUDA 12's */
{
    return cudaEventElapsedTime(milliseconds, start, end);
}

/* ---- the driver's functions by name ---- */
PH_API(int, cudaGetDriverEntryPointByVersion,
       (const char *name, void **function, unsigned version, unsigned long long flags, int *status))
{
    (void)flags;
    *function = ph_driver_symbol(name, (int)version);
    if (status) *status = *function ? 0 : 1; /* cudaDriverEntryPointSuccess, ...SymbolNotFound */
    return CUDA_OK;
}
/* without a version: the caller's */
PH_API_12(int, cudaGetDriverEntryPoint,
          (const char *name, void **function, unsigned long long flags, int *status))
{
    unsigned version = (unsigned)ph_runtime_version(12);
    return cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
}
PH_API_13(int, cudaGetDriverEntryPoint,
          (const char *name, void **function, unsigned long long flags, int *status))
{
    unsigned version = (unsigned)ph_runtime_version(13);
    return cudaGetDriverEntryPointByVersion(name, function, version, flags, status);
}
