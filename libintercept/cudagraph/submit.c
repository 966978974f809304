/* cudagraph/submit.c - puts GPU work on the timeline or into a graph.
 *
 * Why it exists: library calls and kernel launches differ only in their signatures. This is the one
 * place that looks up the duration of a signature and puts the work on a stream. If the stream is
 * being captured, the work becomes an op of the graph instead.
 *
 * Rule: this is the path that a job takes most often. It takes ph_lock only once if the duration is
 * known. */
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
    ph_duration(signature); /* asked now, while the enclosing operator is known */
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
        /* The hub is asked without holding ph_lock. The trace log is also written without it,
         * because it reads the clock. */
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
    /* if capturing is an error here, the capture is now invalid and its end reports the error */
    ph_submit_to(stream, PH_CAPTURING(stream) != 0, signature);
}
