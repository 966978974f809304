/* resolve.c - which stream a handle of the job means, in a simulated rank.
 *
 * Why it exists: there a handle is our own stream; in a leader it is the real library's, and
 * leader/gpu/streams.c answers. */
#include "base/core.h"

struct ph_stream *ph_stream_resolve(void *handle)
{
    if ((uintptr_t)handle > 2) return ph_stream_valid(handle) ? handle : NULL;
    /* 0 and cudaStreamLegacy (1); cudaStreamPerThread (2) is treated as the legacy stream's equal
     */
    return ph_stream_default();
}
