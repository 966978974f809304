/* virtual.c - the driver's virtual memory management (cuMem*), which expandable segments use.
 *
 * Why it exists: PyTorch reserves a large range of addresses and maps physical memory into it piece
 * by piece. Memory is charged when it is created, and given back when its last mapping and its
 * handle are gone. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/device.h"
#include "base/log.h"
#include "time/host_clock.h"
#include "work/cudart.h"
#include "simulated/memory/memory.h"
#include <pthread.h>
#include <stdlib.h>

enum { GRANULARITY = 2 << 20, PHYSICAL_MAGIC = 0x50484d4d, LOCATION_DEVICE = 1 };

struct location { /* CUmemLocation */
    int type, id;
};
struct allocation_properties { /* CUmemAllocationProp */
    int type, handle_types;
    struct location location;
    void *win32;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct physical {
    uint32_t magic;
    int references; /* one for the owner of the handle, and one for each mapping */
    size_t bytes;
    struct allocation_properties properties;
};
static struct mapping {
    void *pointer;
    size_t bytes;
    struct physical *physical;
    struct mapping *next;
} *mappings;
static pthread_mutex_t PH_FREE_IN_CHILD virtual_lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct physical *physical)
{
    if (--physical->references) return;
    ph_discharge(physical->properties.location.id, physical->bytes);
    physical->magic = 0;
    free(physical);
}

PH_API(int, cuMemGetAllocationGranularity,
       (size_t *granularity, const struct allocation_properties *properties, int option))
{
    (void)properties, (void)option;
    *granularity = GRANULARITY;
    return CUDA_OK;
}

PH_API(int, cuMemAddressReserve,
       (void **pointer, size_t bytes, size_t alignment, void *hint, unsigned long long flags))
{
    (void)hint, (void)flags;
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (!bytes || bytes % GRANULARITY) return CUDA_INVALID_VALUE;
    ph_touch();
    *pointer = ph_virtual_reserve(bytes, alignment);
    return *pointer ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

PH_API(int, cuMemAddressFree, (void *pointer, size_t bytes))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    return ph_virtual_free(pointer, bytes) ? CUDA_OK : CUDA_INVALID_VALUE;
}

PH_API(int, cuMemCreate,
       (unsigned long long *handle, size_t bytes, const struct allocation_properties *properties,
        unsigned long long flags))
{
    (void)flags;
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (!bytes || bytes % GRANULARITY) return CUDA_INVALID_VALUE;
    if (properties->location.type != LOCATION_DEVICE) {
        ph_unsupported("cuMemCreate (memory that is not a device's)");
        return CUDA_NOT_SUPPORTED;
    }
    if (properties->location.id < 0 || properties->location.id >= ph_device_count())
        return CUDA_INVALID_DEVICE;
    ph_host_call(PH_CALL_MALLOC);
    struct physical *physical = calloc(1, sizeof *physical);
    if (!physical || !ph_charge(properties->location.id, bytes)) {
        free(physical);
        return CUDA_OUT_OF_MEMORY;
    }
    *physical = (struct physical){PHYSICAL_MAGIC, 1, bytes, *properties};
    *handle = (uintptr_t)physical;
    return CUDA_OK;
}

static struct physical *physical_of(unsigned long long handle)
{
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return physical && physical->magic == PHYSICAL_MAGIC ? physical : NULL;
}

PH_API(int, cuMemRelease, (unsigned long long handle))
{
    struct physical *physical = physical_of(handle);
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (!physical) return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    drop(physical);
    pthread_mutex_unlock(&virtual_lock);
    return CUDA_OK;
}

PH_API(int, cuMemMap,
       (void *pointer, size_t bytes, size_t offset, unsigned long long handle,
        unsigned long long flags))
{
    struct physical *physical = physical_of(handle);
    (void)flags;
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (!physical || offset + bytes > physical->bytes || !ph_is_device(pointer))
        return CUDA_INVALID_VALUE;
    struct mapping *mapping = malloc(sizeof *mapping);
    if (!mapping) return CUDA_OUT_OF_MEMORY;
    pthread_mutex_lock(&virtual_lock);
    *mapping = (struct mapping){pointer, bytes, physical, mappings};
    mappings = mapping;
    physical->references++;
    pthread_mutex_unlock(&virtual_lock);
    ph_virtual_owner(pointer, bytes, physical->properties.location.id);
    return CUDA_OK;
}

PH_API(int, cuMemUnmap, (void *pointer, size_t bytes))
{
    bool found = false;
    char *low = pointer, *high = low + bytes;
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    ph_host_call(PH_CALL_FREE);
    pthread_mutex_lock(&virtual_lock);
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if ((char *)mapping->pointer < low || (char *)mapping->pointer >= high) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        drop(mapping->physical);
        free(mapping);
        found = true;
    }
    pthread_mutex_unlock(&virtual_lock);
    if (found) ph_virtual_owner(pointer, bytes, -1);
    return found ? CUDA_OK : CUDA_INVALID_VALUE;
}

PH_API(int, cuMemSetAccess, (void *pointer, size_t bytes, const void *access, size_t count))
{
    (void)bytes, (void)access, (void)count; /* all devices of a process see one address space */
    return ph_is_device(pointer) ? CUDA_OK : CUDA_INVALID_VALUE;
}

PH_API(int, cuMemRetainAllocationHandle, (unsigned long long *handle, void *pointer))
{
    int error = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&virtual_lock);
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if ((char *)pointer >= (char *)mapping->pointer &&
            (char *)pointer < (char *)mapping->pointer + mapping->bytes) {
            mapping->physical->references++;
            *handle = (uintptr_t)mapping->physical;
            error = CUDA_OK;
            break;
        }
    pthread_mutex_unlock(&virtual_lock);
    return error;
}

PH_API(int, cuMemGetAllocationPropertiesFromHandle,
       (struct allocation_properties *properties, unsigned long long handle))
{
    struct physical *physical = physical_of(handle);
    if (!physical) return CUDA_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_OK;
}
