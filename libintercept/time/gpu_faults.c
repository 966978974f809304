/* time/gpu_faults.c - GPUs that are slower than their peers, as the cluster file's [[fault]]
 * entries say.
 *
 * Why it exists: users ask what one slow GPU costs the whole job. PHANTORA_GPU_FAULTS holds the
 * faults of this node as `ordinal,from_ns,to_ns,speed_permille;...`. A to_ns of 0 means for good.
 * Work issued within the interval takes longer in proportion. */
#include "time/gpu_faults.h"
#include "base/device.h"
#include "base/environment.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS = 64 };
static struct fault {
    int physical;
    uint64_t from, to;
    unsigned permille;
} faults[FAULTS];
static int count;

void ph_gpu_faults_read(void)
{
    const char *at = ph_env("PHANTORA_GPU_FAULTS");
    for (count = 0; at && *at && count < FAULTS; at = strchr(at, ';'), at = at ? at + 1 : NULL) {
        struct fault *fault = &faults[count];
        unsigned long long from, to;
        if (sscanf(at, "%d,%llu,%llu,%u", &fault->physical, &from, &to, &fault->permille) != 4 ||
            fault->permille == 0)
            ph_die("PHANTORA_GPU_FAULTS cannot be read at `%s`; start the job with the phantora-ns "
                   "command",
                   at);
        fault->from = from;
        fault->to = to;
        count++;
    }
}

uint64_t ph_gpu_fault_slows(int device, uint64_t duration_ns, uint64_t now)
{
    for (int i = 0; i < count; i++)
        if (faults[i].physical == ph_device_physical(device) && now >= faults[i].from &&
            (faults[i].to == 0 || now < faults[i].to))
            duration_ns = duration_ns * 1000 / faults[i].permille;
    return duration_ns;
}
