/* cudagraph/submit.h - puts GPU work on a stream, or into the graph that it is captured into. */
#ifndef PH_SUBMIT_H
#define PH_SUBMIT_H
#include "time/timeline.h"
#include "work/signature.h"
#include <stdbool.h>

/* Submits the work of a library call. `handle` is a cudaStream_t or CUstream as the job passes it.
 */
void ph_submit(void *handle, const struct ph_signature *signature);
/* The same for a caller that knows the stream and whether it is being captured. */
void ph_submit_to(struct ph_stream *stream, bool captured, const struct ph_signature *signature);
#endif
