/* streams.c - streams and events of the real libraries, and their shadows on the simulated
 * timeline.
 *
 * Why it exists: the job's handles are the real ones, but simulated time decides when work is ready
 * (time/timeline.c), as on every other rank. When the job learns that work is finished, the real
 * GPU is waited for as well, because the caching allocator then reuses its memory. Rule: the
 * simulated wait comes first. The hub sees it, and by its end every rank has sent what the real GPU
 * may wait for. The time of the real call is not the job's, so ph_leave comes after it. */
#include "base/log.h"
#include "work/cudart.h"
#include "leader/gpu/map.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include "leader/measure/measure.h"
#include <pthread.h>
#include <stdatomic.h>

int cudaStreamSynchronize(void *), cuStreamSynchronize(void *), cudaEventSynchronize(void *),
    cuEventSynchronize(void *);
int cudaStreamIsCapturing(void *, int *),
    cudaGetLastError(void); /* not wrapped; declared for their types */

static struct ph_map streams = PH_MAP_INIT, events = PH_MAP_INIT;
static _Atomic int captures; /* under way */

/* ---- streams ---- */
struct ph_stream *ph_shadow_stream(void *handle)
{
    /* 0, cudaStreamLegacy, cudaStreamPerThread: as in a simulated rank */
    if ((uintptr_t)handle <= 2) return ph_stream_default();
    struct ph_stream *shadow = ph_map_get(&streams, handle);
    if (shadow) return shadow;
    /* another library's stream: it does not wait for the legacy stream */
    struct ph_stream *fresh = ph_stream_create(ph_device_current(), 1, 0);
    struct ph_stream *other = ph_map_add(&streams, handle, fresh);
    if (other) ph_stream_destroy(fresh);
    return other ? other : fresh;
}

static void stream_made(int error, void *handle, unsigned flags, int priority)
{
    if (error) return;
    /* the real call has no cost class: its time counts as the job's time before the next call */
    ph_host_pause();
    struct ph_stream *old =
        ph_map_put(&streams, handle, ph_stream_create(ph_device_current(), flags, priority));
    if (old) ph_stream_destroy(old); /* a handle that was destroyed without a call to us */
    ph_host_resume();
}

static void stream_gone(void *handle)
{
    ph_lead_stream_gone(handle);
    struct ph_stream *shadow = ph_map_take(&streams, handle);
    if (shadow) ph_stream_destroy(shadow);
}

PH_API(int, cudaStreamCreate, (void **stream))
{
    int error = PH_REAL(cudaStreamCreate)(stream);
    return stream_made(error, *stream, 0, 0), error;
}
PH_API(int, cudaStreamCreateWithFlags, (void **stream, unsigned flags))
{
    int error = PH_REAL(cudaStreamCreateWithFlags)(stream, flags);
    return stream_made(error, *stream, flags, 0), error;
}
PH_API(int, cudaStreamCreateWithPriority, (void **stream, unsigned flags, int priority))
{
    int error = PH_REAL(cudaStreamCreateWithPriority)(stream, flags, priority);
    return stream_made(error, *stream, flags, priority), error;
}
PH_API(int, cuStreamCreate, (void **stream, unsigned flags))
{
    int error = PH_REAL(cuStreamCreate)(stream, flags);
    return stream_made(error, *stream, flags, 0), error;
}
PH_API(int, cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))
{
    int error = PH_REAL(cuStreamCreateWithPriority)(stream, flags, priority);
    return stream_made(error, *stream, flags, priority), error;
}
PH_API(int, cudaStreamDestroy, (void *stream))
{
    return stream_gone(stream), PH_REAL(cudaStreamDestroy)(stream);
}
PH_API(int, cuStreamDestroy_v2, (void *stream))
{
    return stream_gone(stream), PH_REAL(cuStreamDestroy_v2)(stream);
}

PH_API(int, cudaStreamGetDevice, (void *stream, int *device))
{
    int error = PH_REAL(cudaStreamGetDevice)(stream, device);
    if (!error) *device = ph_shadow_stream(stream)->device;
    return error;
}

/* ---- waiting for the real GPU ---- */
/* Waits until the hub knows when `head` is reached. The host clock stands still. */
static void await_expr(struct ph_expr expr)
{
    struct ph_pack body = {0};
    pthread_mutex_lock(&ph_lock);
    if (ph_expr_upper(&expr) !=
        PH_UNKNOWN) { /* everything in it is finished, or its end is known */
        pthread_mutex_unlock(&ph_lock);
        return;
    }
    uint64_t req = ph_request_begin_locked(&body);
    ph_pack_array(&body, 1);
    ph_expr_pack(&body, &expr);
    struct ph_reply reply;
    ph_request_locked(PH_MESSAGE_TIMES, req, &body, 4, &reply, -1);
    ph_read_array(&reply);
    uint64_t time = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    ph_expr_reached(&expr, time);
    atomic_store(&ph_stats()->blocked, 0);
    pthread_mutex_unlock(&ph_lock);
}

void ph_lead_settle(void *handle)
{
    if (ph_lead_awaited() == 0) return;
    struct ph_stream *shadow = ph_shadow_stream(handle);
    ph_host_pause();
    pthread_mutex_lock(&ph_lock);
    struct ph_expr expr = shadow->expr;
    pthread_mutex_unlock(&ph_lock);
    await_expr(expr);
    ph_host_resume();
}

void ph_lead_wait_stream(void *handle)
{
    ph_lead_settle(handle);
    /* the process is ending: there is nothing left to wait for */
    enum { UNLOADING = 4, CONTEXT_IS_DESTROYED = 709 };
    int error = PH_REAL(cudaStreamSynchronize)(handle);
    if (error && error != UNLOADING && error != CONTEXT_IS_DESTROYED)
        ph_die("the real GPU failed (error %d while waiting for a stream): the job's own error, or "
               "this machine's",
               error);
}

PH_API(int, cudaStreamSynchronize, (void *stream))
{
    ph_stream_synchronize(ph_shadow_stream(stream));
    int error = PH_REAL_TIMED(PH_CALL_SYNC, PH_REAL(cudaStreamSynchronize)(stream));
    return ph_leave(), error;
}
PH_API(int, cuStreamSynchronize, (void *stream))
{
    ph_stream_synchronize(ph_shadow_stream(stream));
    int error = PH_REAL_TIMED(PH_CALL_SYNC, PH_REAL(cuStreamSynchronize)(stream));
    return ph_leave(), error;
}
/* The work is ready in simulated time, so the real work is waited for. But the job only pays for
 * the query. */
#define ASKED(query, wait)                                                     \
    (__extension__({                                                           \
        int answer_ = PH_REAL_TIMED(PH_CALL_QUERY, query);                     \
        if (answer_ == CUDA_NOT_READY) {                                       \
            PH_REAL(cudaGetLastError)(); /* the job must not see this error */ \
            answer_ = (wait);                                                  \
        }                                                                      \
        answer_;                                                               \
    }))
PH_API(int, cudaStreamQuery, (void *stream))
{
    if (ph_lead_capturing(stream)) return PH_REAL(cudaStreamQuery)(stream);
    if (!ph_stream_ready(ph_shadow_stream(stream))) return CUDA_NOT_READY;
    int error = ASKED(PH_REAL(cudaStreamQuery)(stream), PH_REAL(cudaStreamSynchronize)(stream));
    return ph_leave(), error;
}
PH_API(int, cuStreamQuery, (void *stream))
{
    if (ph_lead_capturing(stream)) return PH_REAL(cuStreamQuery)(stream);
    if (!ph_stream_ready(ph_shadow_stream(stream))) return CUDA_NOT_READY;
    int error = ASKED(PH_REAL(cuStreamQuery)(stream), PH_REAL(cuStreamSynchronize)(stream));
    return ph_leave(), error;
}
PH_API(int, cudaDeviceSynchronize, (void))
{
    ph_device_synchronize(ph_device_current());
    int error = PH_REAL(cudaDeviceSynchronize)();
    return ph_leave(), error;
}
PH_API(int, cuCtxSynchronize, (void))
{
    ph_device_synchronize(ph_device_current());
    int error = PH_REAL(cuCtxSynchronize)();
    return ph_leave(), error;
}

/* ---- events ---- */

static struct ph_event *shadow_event(void *handle)
{
    struct ph_event *shadow = ph_map_get(&events, handle);
    if (shadow) return shadow;
    /* another process's event */
    struct ph_event *fresh = ph_event_create(PH_EVENT_DISABLE_TIMING),
                    *other = ph_map_add(&events, handle, fresh);
    if (other) ph_event_destroy(fresh);
    return other ? other : fresh;
}

static void event_made(int error, void *handle, unsigned flags)
{
    if (error) return;
    ph_host_pause();
    struct ph_event *old = ph_map_put(&events, handle, ph_event_create(flags));
    if (old) ph_event_destroy(old);
    ph_host_resume();
}

static void event_gone(void *handle)
{
    ph_host_pause();
    struct ph_event *shadow = ph_map_take(&events, handle);
    if (shadow) ph_event_destroy(shadow);
    ph_host_resume();
}

PH_API(int, cudaEventCreateWithFlags, (void **event, unsigned flags))
{
    int error = PH_REAL(cudaEventCreateWithFlags)(event, flags);
    return event_made(error, *event, flags), error;
}
PH_API(int, cudaEventCreate, (void **event))
{
    int error = PH_REAL(cudaEventCreate)(event);
    return event_made(error, *event, 0), error;
}
PH_API(int, cuEventCreate, (void **event, unsigned flags))
{
    int error = PH_REAL(cuEventCreate)(event, flags);
    return event_made(error, *event, flags), error;
}
PH_API(int, cudaEventDestroy, (void *event))
{
    return event_gone(event), PH_REAL(cudaEventDestroy)(event);
}
PH_API(int, cuEventDestroy_v2, (void *event))
{
    return event_gone(event), PH_REAL(cuEventDestroy_v2)(event);
}

static void recorded(void *event, void *stream)
{
    if (!ph_lead_capturing(stream)) ph_event_record(shadow_event(event), ph_shadow_stream(stream));
}
PH_API(int, cudaEventRecord, (void *event, void *stream))
{
    recorded(event, stream);
    int error = PH_REAL_TIMED(PH_CALL_RECORD, PH_REAL(cudaEventRecord)(event, stream));
    return ph_leave(), error;
}
PH_API(int, cudaEventRecordWithFlags, (void *event, void *stream, unsigned flags))
{
    recorded(event, stream);
    int error =
        PH_REAL_TIMED(PH_CALL_RECORD, PH_REAL(cudaEventRecordWithFlags)(event, stream, flags));
    return ph_leave(), error;
}
PH_API(int, cuEventRecord, (void *event, void *stream))
{
    recorded(event, stream);
    int error = PH_REAL_TIMED(PH_CALL_RECORD, PH_REAL(cuEventRecord)(event, stream));
    return ph_leave(), error;
}

static void waits(void *stream, void *event)
{
    if (!ph_lead_capturing(stream)) ph_stream_wait(ph_shadow_stream(stream), shadow_event(event));
}
PH_API(int, cudaStreamWaitEvent, (void *stream, void *event, unsigned flags))
{
    waits(stream, event);
    int error = PH_REAL_TIMED(PH_CALL_WAIT, PH_REAL(cudaStreamWaitEvent)(stream, event, flags));
    return ph_leave(), error;
}
PH_API(int, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))
{
    waits(stream, event);
    int error = PH_REAL_TIMED(PH_CALL_WAIT, PH_REAL(cuStreamWaitEvent)(stream, event, flags));
    return ph_leave(), error;
}

PH_API(int, cudaEventQuery, (void *event))
{
    struct ph_event *shadow = shadow_event(event);
    if (!shadow->recorded) return PH_REAL(cudaEventQuery)(event);
    if (!ph_event_ready(shadow)) return CUDA_NOT_READY;
    int error = ASKED(PH_REAL(cudaEventQuery)(event), PH_REAL(cudaEventSynchronize)(event));
    return ph_leave(), error;
}
PH_API(int, cuEventQuery, (void *event))
{
    struct ph_event *shadow = shadow_event(event);
    if (!shadow->recorded) return PH_REAL(cuEventQuery)(event);
    if (!ph_event_ready(shadow)) return CUDA_NOT_READY;
    int error = ASKED(PH_REAL(cuEventQuery)(event), PH_REAL(cuEventSynchronize)(event));
    return ph_leave(), error;
}
PH_API(int, cudaEventSynchronize, (void *event))
{
    ph_event_synchronize(shadow_event(event));
    int error = PH_REAL(cudaEventSynchronize)(event);
    return ph_leave(), error;
}
PH_API(int, cuEventSynchronize, (void *event))
{
    ph_event_synchronize(shadow_event(event));
    int error = PH_REAL(cuEventSynchronize)(event);
    return ph_leave(), error;
}

/* In simulated time. The real library itself refuses an event that was never recorded or has no
 * timing. */
static int elapsed(float *milliseconds, void *start, void *end,
                   int (*refuse)(float *, void *, void *))
{
    struct ph_event *from = shadow_event(start), *to = shadow_event(end);
    if (!from->recorded || !to->recorded || (from->flags | to->flags) & PH_EVENT_DISABLE_TIMING)
        return refuse(milliseconds, start, end);
    return ph_event_elapsed(from, to, milliseconds) ? CUDA_OK : CUDA_NOT_READY;
}
PH_API(int, cudaEventElapsedTime, (float *milliseconds, void *start, void *end))
{
    return elapsed(milliseconds, start, end, PH_REAL(cudaEventElapsedTime));
}
PH_API(int, cuEventElapsedTime_v2, (float *milliseconds, void *start, void *end))
{
    return elapsed(milliseconds, start, end, PH_REAL(cuEventElapsedTime_v2));
}
PH_API(int, cuEventElapsedTime, (float *milliseconds, void *start, void *end))
{
    return elapsed(milliseconds, start, end, PH_REAL(cuEventElapsedTime_v2));
}

/* ---- host functions ---- */
PH_API(int, cudaLaunchHostFunc, (void *stream, void (*function)(void *), void *data))
{
    ph_host_call(PH_CALL_LAUNCH);
    int error = PH_REAL(cudaLaunchHostFunc)(stream, function, data);
    return ph_leave(), error;
}
PH_API(int, cudaStreamAddCallback,
       (void *stream, void (*callback)(void *, int, void *), void *data, unsigned flags))
{
    ph_host_call(PH_CALL_LAUNCH);
    int error = PH_REAL(cudaStreamAddCallback)(stream, callback, data, flags);
    return ph_leave(), error;
}

/* ---- graphs: they run, but are not observed ---- */
bool ph_lead_capturing(void *stream)
{
    int status = 0;
    if (atomic_load_explicit(&captures, memory_order_relaxed) == 0) return false;
    return PH_REAL(cudaStreamIsCapturing)(stream, &status) == CUDA_OK && status != 0;
}

int ph_lead_captures(void) { return atomic_load(&captures); }

/* Called before a capture begins: from then on the GPU load queries no stream. */
static void capture_begins(void)
{
    atomic_fetch_add(&captures, 1);
    ph_gpu_load_stop();
}

static void capture_begun(int error)
{
    if (error) {
        atomic_fetch_sub(&captures, 1);
        return;
    }
    ph_warn("work is being captured into a CUDA graph: the leader does not observe graphs, their "
            "time counts as nothing");
}
static void capture_ended(void)
{
    if (atomic_load(&captures) > 0) atomic_fetch_sub(&captures, 1);
}
PH_API(int, cudaStreamBeginCapture, (void *stream, int mode))
{
    capture_begins();
    int error = PH_REAL(cudaStreamBeginCapture)(stream, mode);
    return capture_begun(error), error;
}
PH_API(int, cudaStreamBeginCaptureToGraph,
       (void *stream, void *graph, const void *dependencies, const void *edges, size_t count,
        int mode))
{
    capture_begins();
    int error =
        PH_REAL(cudaStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, count, mode);
    return capture_begun(error), error;
}
PH_API(int, cudaStreamEndCapture, (void *stream, void **graph))
{
    return capture_ended(), PH_REAL(cudaStreamEndCapture)(stream, graph);
}
PH_API(int, cuStreamBeginCapture_v2, (void *stream, int mode))
{
    capture_begins();
    int error = PH_REAL(cuStreamBeginCapture_v2)(stream, mode);
    return capture_begun(error), error;
}
PH_API(int, cuStreamEndCapture, (void *stream, void **graph))
{
    return capture_ended(), PH_REAL(cuStreamEndCapture)(stream, graph);
}
