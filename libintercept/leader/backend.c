/* leader/backend.c - the backend of a leader, whose GPU is real. */
#include "base/api.h"
#include "base/memory.h"
#include "work/cudart.h"
#include "work/values_library.h"
#include "nccl/operation_bytes.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"

/* Tells the values library to name operators and do nothing else. */
extern const int phantora_values_observe_only PH_EXPORT;
const int phantora_values_observe_only = 1;

/* cudaPointerAttributes; the rest differs between versions (64 bytes in all so far) */
struct pointer_attributes {
    int type, device;
    char rest[120];
};
int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *pointer),
    cudaPeekAtLastError(void), cudaGetLastError(void);

enum ph_memory_kind ph_lead_memory_kind(const void *pointer)
{
    enum { UNREGISTERED, HOST };
    struct pointer_attributes attributes = {0};
    bool clean = PH_REAL(cudaPeekAtLastError)() == CUDA_OK;
    if (PH_REAL(cudaPointerGetAttributes)(&attributes, pointer) != CUDA_OK) {
        if (clean) PH_REAL(cudaGetLastError)(); /* our query: the job must not find its error */
        return PH_PAGEABLE;
    }
    return attributes.type == UNREGISTERED ? PH_PAGEABLE
           : attributes.type == HOST       ? PH_PINNED
                                           : PH_DEVICE;
}

/* Whether a word is an address of the GPU's, for the parameters that estimators receive (a few
 * launches of each signature). */
static bool find(const void *pointer, struct ph_allocation *found)
{
    enum ph_memory_kind kind = ph_lead_memory_kind(pointer);
    if (kind == PH_PAGEABLE) return false;
    *found = (struct ph_allocation){
        .base = (uintptr_t)pointer, .bytes = 1, .device = ph_lead_device(), .kind = kind};
    return true;
}

const struct ph_backend ph_backend = {
    .own_prefix = "PHANTORA_LEAD_",
    .leads = true,
    .measures = ph_lead_measures,
    .joined = ph_values_load,
    .hub_wait = ph_gpu_load_held,
    .without_values =
        "kernels are measured without the names of their operators, which simulated ranks ask for",
    .stream = ph_shadow_stream,
    .find = find,
    .nccl = {.refused = ph_nccl_refused,
             .payload = ph_nccl_payload,
             .undefined = ph_nccl_undefined,
             .result = ph_nccl_result,
             .scalar = ph_nccl_scalar,
             .alloc = ph_nccl_alloc,
             .free = ph_nccl_free},
};
