/* seams.c - what the shared sources ask of a simulated rank's memory, answered for a leader.
 *
 * Why it exists: the timeline, signatures and operators are one source for both libraries; in a
 * leader, memory is the real GPU's and nothing is computed on the CPU. */
#include "work/cudart.h"
#include "leader/leader.h"
#include <string.h>

/* no device memory lies in this process */
bool ph_is_device(const void *pointer) { return (void)pointer, false; }
void ph_payload_settle(const void *pointer, size_t bytes) { (void)pointer, (void)bytes; }
/* where allocations go is the real driver's affair */
void ph_device_code(int device) { (void)device; }
void ph_device_communicator(int device) { (void)device; }
void ph_device_use(int device) { (void)device; }

const char *const ph_without_values =
    "kernels are measured without the names of their operators, which simulated ranks ask for";

/* Tells the values library to name operators and do nothing else. */
extern const int phantora_values_observe_only PH_EXPORT;
const int phantora_values_observe_only = 1;

bool ph_all_zero(const void *pointer, size_t bytes)
{
    const unsigned char *at = pointer;
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

/* cudaPointerAttributes: what follows differs between versions, 64 bytes so far */
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
        if (clean) PH_REAL(cudaGetLastError)(); /* our question: the job must not find its error */
        return PH_PAGEABLE;
    }
    return attributes.type == UNREGISTERED ? PH_PAGEABLE
           : attributes.type == HOST       ? PH_PINNED
                                           : PH_DEVICE;
}

/* For the parameters that estimators are told (a few launches of each signature): whether a word is
 * an address of the GPU's. */
bool ph_find(const void *pointer, struct ph_allocation *found)
{
    enum ph_memory_kind kind = ph_lead_memory_kind(pointer);
    if (kind == PH_PAGEABLE) return false;
    *found = (struct ph_allocation){
        .base = (uintptr_t)pointer, .bytes = 1, .device = ph_lead_device(), .kind = kind};
    return true;
}
