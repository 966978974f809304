/* cupti.c - CUPTI is not simulated, and says so.
 *
 * Why it exists: PyTorch's profiler asks NVIDIA's CUPTI for GPU activity. The real library misses
 * private tables of the driver and fails with "unknown error". This function tells the job what it
 * can do instead. Kineto continues with CPU activity only. */
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
