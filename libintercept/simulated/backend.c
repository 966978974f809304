/* simulated/backend.c - the backend of a simulated rank. */
#include "base/fork.h"
#include "time/timeline.h"
#include "work/values_library.h"
#include "simulated/cuda/runtime.h"
#include "simulated/math/cudnn.h"
#include "simulated/memory/host_tensors.h"
#include "simulated/memory/memory.h"
#include "nccl/operation_bytes.h"

/* A handle is our own stream, or 0, cudaStreamLegacy (1) or cudaStreamPerThread (2). The latter is
 * treated like the legacy stream. */
static struct ph_stream *stream(void *handle)
{
    if (ph_forked()) return NULL;
    if ((uintptr_t)handle > 2) return ph_stream_valid(handle) ? handle : NULL;
    return ph_stream_default();
}

static void joined(void)
{
    ph_values_load();
    ph_host_joined();
}

const struct ph_backend ph_backend = {
    .joined = joined,
    .without_values =
        "small operators do not run on the CPU: object collectives (all_gather_object, "
        "broadcast_object_list) fail, and what the GPU would compute reads as zero",
    .stream = stream,
    .device_used = ph_device_use,
    .code_loaded = ph_device_code,
    .communicator_made = ph_device_communicator,
    .find = ph_find,
    .nccl = {.refused = ph_nccl_refused,
             .payload = ph_nccl_payload,
             .undefined = ph_nccl_undefined,
             .result = ph_nccl_result,
             .scalar = ph_nccl_scalar,
             .alloc = ph_nccl_alloc,
             .free = ph_nccl_free},
    .cudnn_destroy = ph_cudnn_real_destroy,
};
