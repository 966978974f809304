/* cupti.c - CUPTI is not simulated, and says so.
 *
 * Why it exists: PyTorch's profiler asks NVIDIA's CUPTI for GPU activity. The real library finds
 * private tables of the driver missing and fails with "unknown error"; here the job is told what it
 * gets instead. Kineto goes on with CPU activity alone. */
#define PH_CLASS PH_REFUSED
#include "base/log.h"

PH_API(int, cuptiSubscribe, (void **subscriber, void *callback, void *data))
{
    enum { CUPTI_NOT_SUPPORTED = 27 };
    (void)callback, (void)data;
    if (subscriber) *subscriber = NULL;
    ph_warn("torch.profiler sees no GPU activity here, and the CPU's in real time; phantora-ns "
            "--trace DIR writes both as simulated");
    return CUPTI_NOT_SUPPORTED;
}
