/* properties.c - what a GPU reports about itself through the runtime and the driver API.
 *
 * Why it exists: both APIs answer the same questions from the same facts (device.conf and the
 * ordinals of base/device.c), so they are implemented together. Rule: a value that the GPU's data
 * file does not give is an error or a warning, never a silent zero. */
#define PH_CLASS PH_SIMULATED
#include "base/device.h"
#include "base/log.h"
#include "simulated/cuda/runtime.h"
#include "simulated/cuda/versions.h"
#include <stdatomic.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cudaError_t and CUresult agree on these (driver_types.h, cuda.h). */
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101 };

static bool visible(int device) { return device >= 0 && device < ph_device_count(); }

/* ---- the implementation behind both APIs; every function returns an error number ---- */

static int get_attribute(int *value, int attribute, int device)
{
    if (value == NULL) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    return ph_device_attribute(device, attribute, value) ? SUCCESS : INVALID_VALUE;
}

static int get_pci_id(char *text, int length, int device)
{
    if (text == NULL || length <= 0) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    int domain, bus, slot;
    ph_physical_pci(ph_device_physical(device), &domain, &bus, &slot);
    char full[32];
    int needed = snprintf(full, sizeof full, "%04X:%02X:%02X.0", domain, bus, slot);
    if (needed >= length) return INVALID_VALUE;
    memcpy(text, full, (size_t)needed + 1);
    return SUCCESS;
}

static int find_pci_id(int *device, const char *text)
{
    if (device == NULL || text == NULL) return INVALID_VALUE;
    unsigned domain = 0, bus, slot;
    /* The forms that the driver documents: domain:bus:device.function, domain:bus:device,
     * bus:device.function. */
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return INVALID_VALUE;
    }
    for (int i = 0; i < ph_device_count(); i++) {
        int d, b, s;
        ph_physical_pci(ph_device_physical(i), &d, &b, &s);
        if ((unsigned)d == domain && (unsigned)b == bus && (unsigned)s == slot) {
            *device = i;
            return SUCCESS;
        }
    }
    return INVALID_DEVICE;
}

static int can_access_peer(int *possible, int device, int peer)
{
    if (possible == NULL) return INVALID_VALUE;
    if (!visible(device) || !visible(peer)) return INVALID_DEVICE;
    *possible =
        device != peer; /* a device is not its own peer; all GPUs of a node can reach each other */
    return SUCCESS;
}

/* CUdevice_P2PAttribute between GPUs of one node, which are joined by NVLink if the model has it,
 * otherwise by PCIe. */
static int get_peer_attribute(int *value, int attribute, int device, int peer)
{
    if (value == NULL) return INVALID_VALUE;
    if (!visible(device) || !visible(peer) || device == peer) return INVALID_DEVICE;
    bool nvlink = ph_spec()->nvlinks > 0;
    switch (attribute) {
    case 1: /* PERFORMANCE_RANK: 0 is the best path */ *value = nvlink ? 0 : 1; return SUCCESS;
    case 2: /* ACCESS_SUPPORTED */
    case 4: /* CUDA_ARRAY_ACCESS_SUPPORTED */ *value = 1; return SUCCESS;
    case 3: /* NATIVE_ATOMIC_SUPPORTED */ *value = nvlink; return SUCCESS;
    case 5: /* ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED */ *value = 0; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

/* An attribute for a field of a struct, which cannot say "unknown". Warns once per process about
 * the first missing one. */
static int attribute_or_warn(int device, int attribute)
{
    static atomic_bool warned;
    int value = 0;
    if (!ph_device_attribute(device, attribute, &value) && !atomic_exchange(&warned, true))
        ph_warn("the data of this GPU model has no attribute %d (CUdevice_attribute); device "
                "properties show it as 0",
                attribute);
    return value;
}

/* cudaDeviceProp of a major. It begins with the name. What is no attribute is zero. */
static int get_properties(int major, char *properties, int device)
{
    if (properties == NULL) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    const struct ph_properties *layout = ph_properties_layout(major);
    const struct ph_device_spec *gpu = ph_spec();
    ph_runtime_version(major); /* for its warning */
    memset(properties, 0, layout->bytes);
    snprintf(properties, layout->uuid, "%s", gpu->name);
    ph_device_uuid(device, (unsigned char *)properties + layout->uuid);
    memcpy(properties + layout->total_memory, &gpu->memory_bytes, sizeof gpu->memory_bytes);
    for (size_t i = 0; i < layout->count; i++) {
        int64_t value = attribute_or_warn(device, layout->property[i].attribute);
        memcpy(properties + layout->property[i].offset, &value, layout->property[i].bytes);
    }
    return SUCCESS;
}

static int get_priorities(int *least, int *greatest)
{
    if (least != NULL) *least = PH_STREAM_PRIORITY_LEAST;
    if (greatest != NULL) *greatest = PH_STREAM_PRIORITY_GREATEST;
    return SUCCESS;
}

/* ---- CUDA runtime ---- */

PH_API_13(int, cudaGetDeviceProperties, (void *properties, int device))
{
    return ph_set_error(get_properties(13, properties, device));
}
PH_API(int, cudaGetDeviceProperties_v2, (void *properties, int device)) /* CUDA 12's */
{
    return ph_set_error(get_properties(12, properties, device));
}
/* Under this name CUDA 12 has the layout of CUDA 11, which no header of its own describes. */
PH_API_12(int, cudaGetDeviceProperties, (void *properties, int device))
{
    enum { NOT_SUPPORTED = 801 };
    (void)properties, (void)device;
    ph_unsupported("cudaGetDeviceProperties (CUDA 11's layout)");
    return ph_set_error(NOT_SUPPORTED);
}

PH_API(int, cudaDeviceGetAttribute, (int *value, int attribute, int device))
{
    return ph_set_error(get_attribute(value, attribute, device));
}

PH_API(int, cudaDeviceGetPCIBusId, (char *text, int length, int device))
{
    return ph_set_error(get_pci_id(text, length, device));
}

PH_API(int, cudaDeviceGetByPCIBusId, (int *device, const char *text))
{
    return ph_set_error(find_pci_id(device, text));
}

PH_API(int, cudaDeviceGetStreamPriorityRange, (int *least, int *greatest))
{
    return ph_set_error(get_priorities(least, greatest));
}

PH_API(int, cudaDeviceCanAccessPeer, (int *possible, int device, int peer))
{
    return ph_set_error(can_access_peer(possible, device, peer));
}

PH_API(int, cudaDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer))
{
    return ph_set_error(get_peer_attribute(value, attribute, device, peer));
}

/* ---- CUDA driver ---- */

PH_API(int, cuDeviceGetAttribute, (int *value, int attribute, int device))
{
    return get_attribute(value, attribute, device);
}

PH_API(int, cuDeviceGetName, (char *name, int length, int device))
{
    if (name == NULL || length <= 0) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", ph_spec()->name);
    return SUCCESS;
}

PH_API(int, cuDeviceGetUuid_v2, (unsigned char *uuid, int device))
{
    if (uuid == NULL) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    ph_device_uuid(device, uuid);
    return SUCCESS;
}

PH_API(int, cuDeviceGetUuid, (unsigned char *uuid, int device))
{
    return cuDeviceGetUuid_v2(uuid, device);
}

PH_API(int, cuDeviceTotalMem_v2, (size_t *bytes, int device))
{
    if (bytes == NULL) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    *bytes = ph_spec()->memory_bytes;
    return SUCCESS;
}

PH_API(int, cuDeviceGetPCIBusId, (char *text, int length, int device))
{
    return get_pci_id(text, length, device);
}

PH_API(int, cuDeviceGetByPCIBusId, (int *device, const char *text))
{
    return find_pci_id(device, text);
}

PH_API(int, cuDeviceComputeCapability, (int *major, int *minor, int device))
{
    if (major == NULL || minor == NULL) return INVALID_VALUE;
    if (!visible(device)) return INVALID_DEVICE;
    *major = ph_spec()->compute_major;
    *minor = ph_spec()->compute_minor;
    return SUCCESS;
}

PH_API(int, cuDeviceCanAccessPeer, (int *possible, int device, int peer))
{
    return can_access_peer(possible, device, peer);
}

PH_API(int, cuDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer))
{
    return get_peer_attribute(value, attribute, device, peer);
}

PH_API(int, cuCtxGetStreamPriorityRange, (int *least, int *greatest))
{
    return get_priorities(least, greatest);
}
