/* cufft.c - cuFFT as PyTorch uses it: plans of many transforms, and their execution.
 *
 * Why it exists: cuFFT links the CUDA runtime statically and cannot run over an emulated driver. A
 * plan keeps its parameters, and an execution is a `call` signature of them (docs/wire-protocol.md,
 * kind 4). The values library computes small transforms on the CPU. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "cudagraph/submit.h"
#include "simulated/memory/memory.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    FFT_OK = 0,
    FFT_INVALID_PLAN = 1,
    FFT_ALLOC_FAILED = 2,
    FFT_INVALID_TYPE = 3,
    FFT_INVALID_VALUE = 4,
    FFT_SETUP_FAILED = 6,
    MOST_DIMENSIONS = 3
};
enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, C_16F = 6 }; /* cudaDataType */

struct plan {
    bool made, allocates;
    void *stream;
    int rank, in_type, out_type, device;
    long long size[MOST_DIMENSIONS], batch;
    uint64_t charged; /* the workspace, if cuFFT allocates it */
};
static struct plan **plans; /* a handle is an index + 1, because cufftHandle is an int */
static int plan_count;
static pthread_mutex_t PH_FREE_IN_CHILD plan_lock = PTHREAD_MUTEX_INITIALIZER;

static struct plan *plan_of(int handle)
{
    pthread_mutex_lock(&plan_lock);
    bool made = handle >= 1 && handle <= plan_count && !ph_forked();
    struct plan *plan = made ? plans[handle - 1] : NULL;
    pthread_mutex_unlock(&plan_lock);
    return plan;
}

static size_t type_bytes(int type)
{
    switch (type) {
    case R_16F: return 2;
    case R_32F:
    case C_16F: return 4;
    case R_64F:
    case C_32F: return 8;
    case C_64F: return 16;
    default: return 0;
    }
}

PH_API(int, cufftCreate, (int *handle))
{
    struct plan *plan = calloc(1, sizeof *plan);
    if (!handle || !plan) return free(plan), FFT_INVALID_VALUE;
    plan->allocates = true;
    pthread_mutex_lock(&plan_lock);
    int at = 0;
    while (at < plan_count && plans[at]) at++;
    struct plan **grown =
        at == plan_count ? realloc(plans, (size_t)(at + 1) * sizeof *plans) : plans;
    if (grown) {
        plans = grown;
        plans[at] = plan;
        if (at == plan_count) plan_count++;
        *handle = at + 1;
    }
    pthread_mutex_unlock(&plan_lock);
    if (!grown) free(plan);
    return grown ? FFT_OK : FFT_ALLOC_FAILED;
}

PH_API(int, cufftDestroy, (int handle))
{
    struct plan *plan = plan_of(handle);
    if (!plan) return FFT_INVALID_PLAN;
    if (plan->charged) ph_discharge(plan->device, plan->charged);
    pthread_mutex_lock(&plan_lock);
    plans[handle - 1] = NULL;
    pthread_mutex_unlock(&plan_lock);
    free(plan);
    return FFT_OK;
}

PH_API(int, cufftSetStream, (int handle, void *stream))
{
    struct plan *plan = plan_of(handle);
    if (!plan) return FFT_INVALID_PLAN;
    plan->stream = stream;
    return FFT_OK;
}

PH_API(int, cufftSetAutoAllocation, (int handle, int allocate))
{
    struct plan *plan = plan_of(handle);
    if (!plan) return FFT_INVALID_PLAN;
    plan->allocates = allocate != 0;
    return FFT_OK;
}

PH_API(int, cufftSetWorkArea, (int handle, void *area))
{
    struct plan *plan = plan_of(handle);
    (void)area; /* nothing is computed, so the area is not used */
    if (!plan) return FFT_INVALID_PLAN;
    if (plan->charged) ph_discharge(plan->device, plan->charged);
    plan->charged = 0;
    return FFT_OK;
}

/* The workspace's size is not published. It is 1 to 8 times the data (cuFFT's documentation); the
 * minimum is taken. */
PH_API(int, cufftXtMakePlanMany,
       (int handle, int rank, long long *n, long long *in_embed, long long in_stride,
        long long in_distance, int in_type, long long *out_embed, long long out_stride,
        long long out_distance, int out_type, long long batch, size_t *work_bytes,
        int compute_type))
{
    if (ph_forked()) return FFT_SETUP_FAILED;
    struct plan *plan = plan_of(handle);
    size_t in_bytes = type_bytes(in_type), out_bytes = type_bytes(out_type), points = 1;
    (void)in_embed, (void)in_stride, (void)in_distance, (void)out_embed, (void)out_stride,
        (void)out_distance, (void)compute_type;
    if (!plan || plan->made) return FFT_INVALID_PLAN;
    if (rank < 1 || rank > MOST_DIMENSIONS || !n || batch < 1) return FFT_INVALID_VALUE;
    if (!in_bytes || !out_bytes || (in_type < C_32F && out_type < C_32F)) return FFT_INVALID_TYPE;
    for (int i = 0; i < rank; i++) {
        if (n[i] < 1) return FFT_INVALID_VALUE;
        points *= (size_t)n[i];
    }
    size_t bytes = points * (size_t)batch * (in_bytes > out_bytes ? in_bytes : out_bytes);
    ph_host_call(PH_CALL_MALLOC);
    ph_warn("the workspace of cuFFT's plans is not known and taken as large as the data: peak "
            "memory may be larger");
    plan->device = ph_device_current();
    if (plan->allocates && !ph_charge(plan->device, bytes)) return FFT_ALLOC_FAILED;
    plan->charged = plan->allocates ? bytes : 0;
    plan->rank = rank, plan->in_type = in_type, plan->out_type = out_type, plan->batch = batch;
    memcpy(plan->size, n, (size_t)rank * sizeof *n);
    plan->made = true;
    if (work_bytes) *work_bytes = bytes;
    return FFT_OK;
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
PH_API(int, cufftXtExec, (int handle, void *input, void *output, int direction))
{
    struct plan *plan = plan_of(handle);
    struct ph_signature signature = {0};
    (void)input, (void)output, (void)direction; /* both directions move the same bytes */
    if (!plan || !plan->made) return FFT_INVALID_PLAN;
    ph_signature_begin(&signature, PH_SIGNATURE_CALL, 2);
    ph_pack_str(&signature.fields, "cufftXtExec");
    ph_pack_array(&signature.fields, 3 + (uint32_t)plan->rank);
    ph_pack_int(&signature.fields, plan->in_type);
    ph_pack_int(&signature.fields, plan->out_type);
    ph_pack_int(&signature.fields, plan->batch);
    for (int i = 0; i < plan->rank; i++) ph_pack_int(&signature.fields, plan->size[i]);
    ph_signature_end(&signature);
    ph_submit(plan->stream, &signature);
    ph_signature_free(&signature);
    return FFT_OK;
}
