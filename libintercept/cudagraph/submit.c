/* cudagraph/submit.c - a piece of GPU work on its way: to the timeline, or into a graph.
 *
 * Why it exists: the libraries' calls and kernel launches differ in their signatures only. Here is
 * the one place where a signature gets its duration and is put on a stream, or becomes an op of the
 * graph that the stream is captured into.
 *
 * Rule: this is the path that a job takes most often. Where the duration is known, ph_lock is taken
 * once. */
#include "cudagraph/submit.h"
#include "base/log.h"
#include "cudagraph/graph.h"
#include "trace/trace_log.h"
#include "work/duration.h"
#include <pthread.h>
#include <stdatomic.h>

static void capture(struct ph_stream *stream, const struct ph_signature *signature)
{
    ph_host_call(signature->call);
    ph_duration(signature); /* asked now, while it is known which operator it belongs to */
    ph_capture_op(stream, PH_GRAPH_OP_KERNEL, signature, NULL, (struct ph_action){0});
    PH_TRACE((ph_trace_code(0, 0), ph_trace_call(ph_signature_call(signature))));
    ph_leave();
}

static void run(struct ph_stream *stream, const struct ph_signature *signature)
{
    struct ph_time time = {0};
    ph_touch();
    pthread_mutex_lock(&ph_lock);
    ph_clock_advance(signature->call);
    if (__builtin_expect(ph_tracing, 0) || !ph_duration_known(signature->key, &time)) {
        /* The hub is asked without the lock, and the trace's log reads the clock. */
        pthread_mutex_unlock(&ph_lock);
        PH_TRACE(ph_signature_trace(signature));
        time = ph_duration(signature);
        pthread_mutex_lock(&ph_lock);
    }
    ph_run_locked(stream, time);
    pthread_mutex_unlock(&ph_lock);
    atomic_fetch_add_explicit(&ph_stats()->kernel_launches, 1, memory_order_relaxed);
    PH_TRACE_END();
    ph_leave();
}

void ph_submit_to(struct ph_stream *stream, bool captured, const struct ph_signature *signature)
{
    if (ph_backend.code_loaded) ph_backend.code_loaded(stream->device);
    if (captured)
        capture(stream, signature);
    else
        run(stream, signature);
}

void ph_submit(void *handle, const struct ph_signature *signature)
{
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) ph_die("a library call names a stream that does not exist");
    /* where it must not be, the capture is spoilt, and its end says so */
    ph_submit_to(stream, PH_CAPTURING(stream) != 0, signature);
}
