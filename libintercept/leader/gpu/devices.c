/* devices.c - eight GPUs where there is one.
 *
 * Why it exists: the job's ranks are on a node with PHANTORA_GPUS_PER_NODE GPUs, and the leader's
 * may be any of them, but the machine has one GPU that it can use. So ordinals of the runtime are
 * *logical* here, and every real call gets the real one. The driver's CUdevice is already real
 * (cuDeviceGet returns it), but functions that PyTorch calls with an ordinal of the runtime accept
 * either. NVML shows as many GPUs as the job's node has. */
#include "base/environment.h"
#include "base/log.h"
#include "work/cudart.h"
#include "work/values_library.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include "leader/measure/measure.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_SUCH_DEVICE = 1 << 20 }; /* an ordinal for which the real library returns its own error */
/* the logical ordinal that the process uses, for translating the real one back */
static _Atomic int home;

int ph_lead_device(void) { return ph_device_current(); }

static void set_environment(void)
{
    const char *machine = ph_env("PHANTORA_MACHINE_VISIBLE_DEVICES");
    ph_device_count(); /* reads the job's CUDA_VISIBLE_DEVICES */
    if (machine)
        setenv("CUDA_VISIBLE_DEVICES", machine, 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}

void ph_lead_environment(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_environment);
}

static bool known(int device) { return device >= 0 && device < ph_device_count(); }
static int real(int device) { return known(device) ? PH_REAL_DEVICE : NO_SUCH_DEVICE; }

/* ---- the runtime ---- */
PH_API(int, cudaGetDeviceCount, (int *count))
{
    int error = PH_REAL(cudaGetDeviceCount)(count);
    if (error)
        ph_warn("the real GPU does not answer (cudaGetDeviceCount: error %d): the leader cannot "
                "work without it",
                error);
    if (!error && *count > 0) *count = ph_device_count();
    if (!error) ph_values_load(); /* before torch's first operator, as in a simulated rank */
    return error;
}
PH_API(int, cudaGetDevice, (int *device)) { return *device = ph_device_current(), CUDA_OK; }
PH_API(int, cudaSetDevice, (int device))
{
    int error = PH_REAL(cudaSetDevice)(real(device));
    if (error) return error;
    ph_device_set(device);
    atomic_store_explicit(&home, device, memory_order_relaxed);
    return CUDA_OK;
}
PH_API(int, cudaInitDevice, (int device, unsigned device_flags, unsigned flags))
{
    return PH_REAL(cudaInitDevice)(real(device), device_flags, flags);
}
PH_API(int, cudaChooseDevice, (int *device, const void *properties))
{
    int error = PH_REAL(cudaChooseDevice)(device, properties);
    if (!error) *device = home;
    return error;
}
PH_API(int, cudaGetDeviceProperties, (void *properties, int device))
{
    return PH_REAL(cudaGetDeviceProperties)(properties, real(device));
}
PH_API(int, cudaGetDeviceProperties_v2, (void *properties, int device))
{
    return PH_REAL(cudaGetDeviceProperties_v2)(properties, real(device));
}
PH_API(int, cudaDeviceGetAttribute, (int *value, int attribute, int device))
{
    return PH_REAL(cudaDeviceGetAttribute)(value, attribute, real(device));
}
PH_API(int, cudaDeviceGetPCIBusId, (char *text, int length, int device))
{
    return PH_REAL(cudaDeviceGetPCIBusId)(text, length, real(device));
}
PH_API(int, cudaDeviceGetByPCIBusId, (int *device, const char *text))
{
    int error = PH_REAL(cudaDeviceGetByPCIBusId)(device, text);
    if (!error) *device = home;
    return error;
}
PH_API(int, cudaDeviceGetDefaultMemPool, (void **pool, int device))
{
    return PH_REAL(cudaDeviceGetDefaultMemPool)(pool, real(device));
}
PH_API(int, cudaDeviceGetMemPool, (void **pool, int device))
{
    return PH_REAL(cudaDeviceGetMemPool)(pool, real(device));
}
PH_API(int, cudaDeviceSetMemPool, (int device, void *pool))
{
    return PH_REAL(cudaDeviceSetMemPool)(real(device), pool);
}
PH_API(int, cudaDeviceGetGraphMemAttribute, (int device, int attribute, void *value))
{
    return PH_REAL(cudaDeviceGetGraphMemAttribute)(real(device), attribute, value);
}
PH_API(int, cudaDeviceSetGraphMemAttribute, (int device, int attribute, void *value))
{
    return PH_REAL(cudaDeviceSetGraphMemAttribute)(real(device), attribute, value);
}
PH_API(int, cudaDeviceGraphMemTrim, (int device))
{
    return PH_REAL(cudaDeviceGraphMemTrim)(real(device));
}

/* Peers are the same real GPU, so access is always allowed. */
PH_API(int, cudaDeviceCanAccessPeer, (int *can, int device, int peer))
{
    if (!known(device) || !known(peer))
        return PH_REAL(cudaDeviceCanAccessPeer)(can, NO_SUCH_DEVICE, NO_SUCH_DEVICE);
    return *can = device != peer, CUDA_OK;
}
PH_API(int, cudaDeviceEnablePeerAccess, (int peer, unsigned flags))
{
    return known(peer) ? CUDA_OK : PH_REAL(cudaDeviceEnablePeerAccess)(NO_SUCH_DEVICE, flags);
}
PH_API(int, cudaDeviceDisablePeerAccess, (int peer))
{
    return known(peer) ? CUDA_OK : PH_REAL(cudaDeviceDisablePeerAccess)(NO_SUCH_DEVICE);
}
PH_API(int, cudaDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer))
{
    enum { ACCESS = 2, ATOMICS = 3 };
    if (!known(device) || !known(peer))
        return PH_REAL(cudaDeviceGetP2PAttribute)(value, attribute, NO_SUCH_DEVICE, NO_SUCH_DEVICE);
    return *value = attribute == ACCESS || attribute == ATOMICS, CUDA_OK;
}

/* ---- structures that contain an ordinal (driver_types.h and cuda.h of CUDA 13: one layout in both
 * APIs) ---- */
struct location { /* type 1: a device */
    int type, id;
};
struct access {
    struct location location;
    int flags;
};
struct allocation_properties { /* CUmemAllocationProp */
    int type, handle_types;
    struct location location;
    void *metadata;
    unsigned char flags[8];
};
struct pool_properties { /* cudaMemPoolProps */
    int type, handle_types;
    struct location location;
    void *security;
    size_t most;
    unsigned char rest[56];
};

static void translate(struct location *location)
{
    enum { DEVICE = 1 };
    if (location->type == DEVICE) location->id = real(location->id);
}

PH_API(int, cudaMemPoolCreate, (void **pool, const struct pool_properties *properties))
{
    struct pool_properties own = *properties;
    translate(&own.location);
    return PH_REAL(cudaMemPoolCreate)(pool, &own);
}

/* A copy of the list with real ordinals, for the caller to free. */
static struct access *translated(const struct access *list, size_t count)
{
    struct access *own = malloc((count ? count : 1) * sizeof *own);
    if (!own) ph_die("out of host memory");
    for (size_t i = 0; i < count; i++) own[i] = list[i], translate(&own[i].location);
    return own;
}

PH_API(int, cuMemSetAccess, (void *pointer, size_t bytes, const struct access *list, size_t count))
{
    struct access *own = translated(list, count);
    int error = PH_REAL(cuMemSetAccess)(pointer, bytes, own, count);
    return free(own), error;
}
PH_API(int, cudaMemPoolSetAccess, (void *pool, const struct access *list, size_t count))
{
    struct access *own = translated(list, count);
    int error = PH_REAL(cudaMemPoolSetAccess)(pool, own, count);
    return free(own), error;
}

PH_API(int, cuMemCreate,
       (unsigned long long *handle, size_t bytes, const struct allocation_properties *properties,
        unsigned long long flags))
{
    struct allocation_properties own = *properties;
    translate(&own.location);
    ph_host_call(PH_CALL_MALLOC);
    int error = PH_REAL_TIMED(PH_CALL_MALLOC, PH_REAL(cuMemCreate)(handle, bytes, &own, flags));
    enum { OUT_OF_MEMORY = 2 };
    if (error == OUT_OF_MEMORY && ph_gpu_load_release())
        error = PH_REAL(cuMemCreate)(handle, bytes, &own, flags);
    return ph_leave(), error;
}
PH_API(int, cuMemGetAllocationGranularity,
       (size_t *bytes, const struct allocation_properties *properties, int option))
{
    struct allocation_properties own = *properties;
    translate(&own.location);
    return PH_REAL(cuMemGetAllocationGranularity)(bytes, &own, option);
}

struct pointer_attributes { /* cudaPointerAttributes; the rest differs between versions */
    int type, device;
};
PH_API(int, cudaPointerGetAttributes, (struct pointer_attributes *attributes, const void *pointer))
{
    int error = PH_REAL(cudaPointerGetAttributes)(attributes, pointer);
    if (!error && attributes->type != 0 && attributes->device == PH_REAL_DEVICE)
        attributes->device = home;
    return error;
}
enum { ATTRIBUTE_ORDINAL = 9 }; /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
PH_API(int, cuPointerGetAttribute, (void *data, int attribute, void *pointer))
{
    int error = PH_REAL(cuPointerGetAttribute)(data, attribute, pointer);
    if (!error && attribute == ATTRIBUTE_ORDINAL && *(int *)data == PH_REAL_DEVICE)
        *(int *)data = home;
    return error;
}
PH_API(int, cuPointerGetAttributes, (unsigned count, int *attributes, void **data, void *pointer))
{
    int error = PH_REAL(cuPointerGetAttributes)(count, attributes, data, pointer);
    for (unsigned i = 0; !error && i < count; i++)
        if (attributes[i] == ATTRIBUTE_ORDINAL && *(int *)data[i] == PH_REAL_DEVICE)
            *(int *)data[i] = home;
    return error;
}

/* ---- the driver ---- */
/* PH_REAL sets the environment first */
PH_API(int, cuInit, (unsigned flags)) { return PH_REAL(cuInit)(flags); }
PH_API(int, cuDeviceGetCount, (int *count))
{
    int error = PH_REAL(cuDeviceGetCount)(count);
    if (!error && *count > 0) *count = ph_device_count();
    return error;
}
PH_API(int, cuDeviceGet, (int *device, int ordinal))
{
    return PH_REAL(cuDeviceGet)(device, real(ordinal));
}
PH_API(int, cuDeviceGetAttribute, (int *value, int attribute, int device))
{
    return PH_REAL(cuDeviceGetAttribute)(value, attribute, real(device));
}
PH_API(int, cuDeviceGetName, (char *name, int length, int device))
{
    return PH_REAL(cuDeviceGetName)(name, length, real(device));
}
PH_API(int, cuDeviceGetUuid, (void *uuid, int device))
{
    return PH_REAL(cuDeviceGetUuid)(uuid, real(device));
}
PH_API(int, cuDeviceGetUuid_v2, (void *uuid, int device))
{
    return PH_REAL(cuDeviceGetUuid_v2)(uuid, real(device));
}
PH_API(int, cuDeviceTotalMem_v2, (size_t *bytes, int device))
{
    return PH_REAL(cuDeviceTotalMem_v2)(bytes, real(device));
}
PH_API(int, cuDeviceGetPCIBusId, (char *text, int length, int device))
{
    return PH_REAL(cuDeviceGetPCIBusId)(text, length, real(device));
}
PH_API(int, cuDeviceGetDefaultMemPool, (void **pool, int device))
{
    return PH_REAL(cuDeviceGetDefaultMemPool)(pool, real(device));
}
PH_API(int, cuDeviceGetMemPool, (void **pool, int device))
{
    return PH_REAL(cuDeviceGetMemPool)(pool, real(device));
}
PH_API(int, cuDeviceCanAccessPeer, (int *can, int device, int peer))
{
    return cudaDeviceCanAccessPeer(can, device, peer);
}
PH_API(int, cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *active))
{
    int error = PH_REAL(cuDevicePrimaryCtxGetState)(real(device), flags, active);
    /* The one real context becomes active with the first logical device. PyTorch visits every
     * device whose context is active. */
    if (!error && *active && device != home && device != ph_device_current()) *active = 0;
    return error;
}
PH_API(int, cuDevicePrimaryCtxRetain, (void **context, int device))
{
    return PH_REAL(cuDevicePrimaryCtxRetain)(context, real(device));
}
PH_API(int, cuDevicePrimaryCtxRelease_v2, (int device))
{
    return PH_REAL(cuDevicePrimaryCtxRelease_v2)(real(device));
}
PH_API(int, cuDevicePrimaryCtxReset_v2, (int device))
{
    return PH_REAL(cuDevicePrimaryCtxReset_v2)(real(device));
}
PH_API(int, cuDevicePrimaryCtxSetFlags_v2, (int device, unsigned flags))
{
    return PH_REAL(cuDevicePrimaryCtxSetFlags_v2)(real(device), flags);
}

/* ---- NVML: the leader's GPU stands for every GPU of the node ---- */
int nvmlDeviceGetHandleByUUID(const char *uuid,
                              void **handle); /* not wrapped; declared for its type */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);
/* The first entry of CUDA_VISIBLE_DEVICES on this machine, a number or a whole UUID; without it
 * NVML's first GPU. */
static int nvml_device(void **handle)
{
    const char *machine = ph_env("PHANTORA_MACHINE_VISIBLE_DEVICES");
    char first[128] = "";
    if (machine) snprintf(first, sizeof first, "%.*s", (int)strcspn(machine, ","), machine);
    if (strncmp(first, "GPU-", 4) == 0 && PH_REAL(nvmlDeviceGetHandleByUUID)(first, handle) == 0)
        return 0;
    return PH_REAL(nvmlDeviceGetHandleByIndex_v2)(
        first[0] >= '0' && first[0] <= '9' ? (unsigned)strtoul(first, NULL, 10) : 0, handle);
}
PH_API(int, nvmlDeviceGetCount_v2, (unsigned *count))
{
    int error = PH_REAL(nvmlDeviceGetCount_v2)(count);
    if (!error && *count > 0) *count = (unsigned)ph_physical_count();
    return error;
}
PH_API(int, nvmlDeviceGetCount, (unsigned *count)) { return nvmlDeviceGetCount_v2(count); }
PH_API(int, nvmlDeviceGetHandleByIndex_v2, (unsigned index, void **handle))
{
    return index < (unsigned)ph_physical_count()
               ? nvml_device(handle)
               : PH_REAL(nvmlDeviceGetHandleByIndex_v2)(NO_SUCH_DEVICE, handle);
}
PH_API(int, nvmlDeviceGetHandleByIndex, (unsigned index, void **handle))
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
