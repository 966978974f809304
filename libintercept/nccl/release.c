/* nccl/release.c - which NCCL the job has, its words, and what the job asks of a communicator.
 *
 * Why it exists: the job's own release decides how the hub simulates it, and what ncclGetVersion
 * answers. The library lies in the process, because torch links it, and none of it runs: its
 * functions that only tell something are asked. Rule: nothing here is a list of releases.
 *
 * Facts of nccl.h (NCCL 2.27 to 2.30): ncclConfig_t grows at its end only, and begins with its own
 * size; members that nobody set hold INT_MIN. */
#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "nccl/release.h"
#include "base/log.h"
#include "base/lookup.h"
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAGIC = (int)0xcafebeefu };

/* A function of the job's own NCCL; NULL while it is not loaded. */
static void *own_nccl(const char *name)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return NULL;
    void *found = ph_real_dlsym()(library, name);
    dlclose(library);
    return found;
}

int ph_nccl_release(void)
{
    static _Atomic int known; /* 0: not yet */
    int version = known;
    if (version) return version;
    int (*get)(int *) = (int (*)(int *))own_nccl("ncclGetVersion");
    return get && get(&version) == 0 ? (known = version) : 0;
}

const char *ph_nccl_error_text(int error)
{
    static const char *const text[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress",
                                       "timeout"};
    const char *(*get)(int) = (const char *(*)(int))own_nccl("ncclGetErrorString");
    if (get) return get(error);
    return error >= 0 && error < (int)(sizeof text / sizeof *text) ? text[error]
                                                                   : "unknown result code";
}

/* ncclConfig_t of the newest release; an older job's is shorter. */
struct config {
    size_t size;
    int magic;
    unsigned version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs; /* 2.27 */
    int nChannelsPerNetPeer, nvlinkCentricSched;         /* 2.28 */
    int graphUsageMode, numRmaCtx;                       /* 2.29 */
    int maxP2pPeers, graphStreamOrdering;                /* 2.30 */
};

/* What would change a collective's time, and is not simulated. */
#define MEMBER(name) {#name, offsetof(struct config, name)}
static const struct {
    const char *name;
    size_t at;
} choices[] = {MEMBER(cgaClusterSize),
               MEMBER(minCTAs),
               MEMBER(maxCTAs),
               MEMBER(collnetEnable),
               MEMBER(CTAPolicy),
               MEMBER(nvlsCTAs),
               MEMBER(nChannelsPerNetPeer),
               MEMBER(nvlinkCentricSched),
               MEMBER(maxP2pPeers)};

bool ph_nccl_config(const void *config)
{
    size_t size;
    int magic;
    if (!config) return true;
    memcpy(&size, config, sizeof size);
    if (size < offsetof(struct config, version)) return false;
    memcpy(&magic, (const char *)config + offsetof(struct config, magic), sizeof magic);
    if (magic != MAGIC) return false;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        int value = INT_MIN;
        if (choices[i].at + sizeof value <= size)
            memcpy(&value, (const char *)config + choices[i].at, sizeof value);
        if (value != INT_MIN)
            ph_warn("the job asks NCCL for %s = %d, which is not simulated", choices[i].name,
                    value);
    }
    return true;
}
