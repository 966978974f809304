/* cupti.c - CUPTI is not simulated, and says so.
 *
 * Why it exists: PyTorch's profiler asks NVIDIA's CUPTI for GPU activity. The real library misses
 * private tables of the driver: it fails with "unknown error", and that of CUDA 13.2 asks itself
 * for the reason until the stack ends. These functions tell the job what it can do instead. Kineto
 * continues with CPU activity only. */
#define PH_CLASS PH_REFUSED
#include "base/log.h"
#include <stdatomic.h>
#include <stdint.h>

enum { CUPTI_INVALID_PARAMETER = 1, CUPTI_NOT_SUPPORTED = 27 };

static int refuse(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT; /* Kineto asks twice */
    if (!atomic_flag_test_and_set(&said))
        ph_warn("torch.profiler sees no GPU activity here, and the CPU's in real time; phantora-ns "
                "--trace DIR writes both as simulated");
    return CUPTI_NOT_SUPPORTED;
}

PH_API(int, cuptiSubscribe, (void **subscriber, void *callback, void *data))
{
    (void)callback, (void)data;
    if (subscriber) *subscriber = NULL;
    return refuse();
}

/* What Kineto of torch 2.15 asks first. */
PH_API(int, cuptiGetVersion, (uint32_t *version))
{
    if (version) *version = 0;
    return refuse();
}

PH_API(int, cuptiGetResultString, (int result, const char **text))
{
    if (!text) return CUPTI_INVALID_PARAMETER;
    *text = result ? "CUPTI is not simulated" : "CUPTI_SUCCESS";
    return 0;
}
