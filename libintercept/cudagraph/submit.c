/* cudagraph/submit.c - a piece of GPU work on its way: to the timeline, or into a graph.
 *
 * Why it exists: the libraries' calls and kernel launches differ in their signatures only. Here is
 * the one place where a signature gets its duration and is put on a stream, or becomes a step of
 * the graph that the stream is captured into. */
#include "cudagraph/submit.h"
#include "backend.h"
#include "base/log.h"
#include "cudagraph/graph.h"
#include "trace/trace_log.h"
#include "work/duration.h"
#include "work/signature.h"

void ph_submit(void *handle, const struct ph_pack *signature)
{
    ph_host_call(ph_call_of(signature));
    struct ph_stream *stream = ph_stream_resolve(handle);
    if (!stream) ph_die("a library call names a stream that does not exist");
    if (ph_backend.code_loaded) ph_backend.code_loaded(stream->device);
    /* where it must not be, the capture is spoilt, and its end says so */
    if (PH_CAPTURING(stream)) {
        ph_duration(signature); /* asked now, while it is known which operator it belongs to */
        ph_capture_node(stream, PH_NODE_KERNEL, signature, NULL, (struct ph_action){0});
        PH_TRACE((ph_trace_code(0, 0), ph_trace_call(ph_trace_call_of(signature))));
        ph_leave();
        return;
    }
    PH_TRACE(ph_trace_launch(signature));
    ph_run(stream, ph_duration(signature));
    atomic_fetch_add_explicit(&ph_stats()->kernel_launches, 1, memory_order_relaxed);
    PH_TRACE_END();
    ph_leave();
}
