/* cudagraph/submit.h - puts GPU work on a stream, or into the graph that it is captured into. */
#ifndef PH_SUBMIT_H
#define PH_SUBMIT_H
#include "base/msgpack.h"

/* `signature` is the canonical msgpack of [kind, fields] (docs/wire-protocol.md); the duration
 * comes from the shared table, else from the hub. `stream` is a cudaStream_t or CUstream as the job
 * passes it. */
void ph_submit(void *stream, const struct ph_pack *signature);
#endif
