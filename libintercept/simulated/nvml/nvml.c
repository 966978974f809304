/* nvml.c - NVML (libnvidia-ml.so.1) for the simulated GPUs.
 *
 * Why it exists: PyTorch asks NVML for device counts, UUIDs, NVLink topology and the processes that
 * an out-of-memory message names; monitoring tools ask for memory. Rules: NVML numbers GPUs by
 * their position on the node and ignores CUDA_VISIBLE_DEVICES. What a simulated GPU does not have
 * (temperature, power, utilisation counters) is NVML_ERROR_NOT_SUPPORTED from the generated stubs,
 * not an invented number. Values and layouts are facts of nvml.h (CUDA 13). */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "base/device.h"
#include "simulated/cuda/versions.h"
#include "simulated/memory/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_VERSION_MISMATCH = 25,
};

/* The driver of the machine on which the data of the H200 was recorded. */
#define DRIVER_VERSION "580.159.04"

typedef struct {
    char never;
} nvml_device; /* a handle is the address of an element of `handles` */
static nvml_device handles[64];

struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct nvml_process_v1 {
    unsigned pid;
    unsigned long long used_bytes;
};
struct nvml_process_v2 {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
struct nvml_fabric_info { /* version 2; version 3 appends one byte */
    unsigned version;
    unsigned char cluster_uuid[16];
    int status;
    unsigned clique;
    unsigned char state, reserved[3];
    unsigned health_mask;
};

static int ordinal_of(const nvml_device *handle)
{
    return handle >= handles && handle < handles + ph_physical_count() ? (int)(handle - handles)
                                                                       : -1;
}

static int put_text(char *target, unsigned length, const char *text)
{
    if (target == NULL) return NVML_INVALID_ARGUMENT;
    if (strlen(text) >= length) return NVML_INSUFFICIENT_SIZE;
    memcpy(target, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

static int put_unsigned(const nvml_device *device, unsigned *target, unsigned value)
{
    if (ordinal_of(device) < 0 || target == NULL) return NVML_INVALID_ARGUMENT;
    *target = value;
    return NVML_SUCCESS;
}

/* ---- library ---- */

PH_API(int, nvmlInitWithFlags, (unsigned flags))
{
    (void)flags;
    ph_spec(); /* exits with one line when no GPU model is configured */
    return NVML_SUCCESS;
}

PH_API(int, nvmlInit_v2, (void)) { return nvmlInitWithFlags(0); }

PH_API(int, nvmlInit, (void)) { return nvmlInitWithFlags(0); }

PH_API(int, nvmlShutdown, (void)) { return NVML_SUCCESS; }

PH_API(const char *, nvmlErrorString, (int result))
{
    static const char *const names[] = {"Success",
                                        "Uninitialized",
                                        "Invalid Argument",
                                        "Not Supported",
                                        "Insufficient Permissions",
                                        "Already Initialized",
                                        "Not Found",
                                        "Insufficient Size",
                                        "Insufficient External Power",
                                        "Driver Not Loaded",
                                        "Timeout",
                                        "Interrupt Request Issue",
                                        "NVML Shared Library Not Found",
                                        "Function Not Found",
                                        "Corrupted infoROM",
                                        "GPU is lost",
                                        "GPU requires reset",
                                        "GPU access blocked by the operating system",
                                        "Driver/library version mismatch",
                                        "In use by another client",
                                        "Insufficient Memory",
                                        "No data",
                                        "ECC not supported with vGPU",
                                        "Insufficient resources",
                                        "Frequency not supported",
                                        "Argument version mismatch",
                                        "Deprecated",
                                        "Not ready",
                                        "GPU not found",
                                        "Invalid state"};
    return result >= 0 && result < (int)(sizeof names / sizeof names[0]) ? names[result]
                                                                         : "Unknown Error";
}

PH_API(int, nvmlSystemGetDriverVersion, (char *version, unsigned length))
{
    return put_text(version, length, DRIVER_VERSION);
}

PH_API(int, nvmlSystemGetNVMLVersion, (char *version, unsigned length))
{
    return put_text(version, length, "13." DRIVER_VERSION);
}

PH_API(int, nvmlSystemGetCudaDriverVersion_v2, (int *version))
{
    if (version == NULL) return NVML_INVALID_ARGUMENT;
    *version = PH_DRIVER_VERSION;
    return NVML_SUCCESS;
}

PH_API(int, nvmlSystemGetCudaDriverVersion, (int *version))
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

PH_API(int, nvmlSystemGetProcessName, (unsigned pid, char *name, unsigned length))
{
    char path[64], text[1024];
    if (name == NULL || length == 0) return NVML_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return NVML_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0'; /* the command's first word ends at its own NUL */
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

/* ---- finding GPUs ---- */

PH_API(int, nvmlDeviceGetCount_v2, (unsigned *count))
{
    if (count == NULL) return NVML_INVALID_ARGUMENT;
    *count = (unsigned)ph_physical_count();
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetCount, (unsigned *count)) { return nvmlDeviceGetCount_v2(count); }

PH_API(int, nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvml_device **device))
{
    if (device == NULL || index >= (unsigned)ph_physical_count()) return NVML_INVALID_ARGUMENT;
    *device = &handles[index];
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetHandleByIndex, (unsigned index, nvml_device **device))
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

PH_API(int, nvmlDeviceGetHandleByUUID, (const char *uuid, nvml_device **device))
{
    if (uuid == NULL || device == NULL) return NVML_INVALID_ARGUMENT;
    for (int i = 0; i < ph_physical_count(); i++) {
        unsigned char bytes[16];
        char text[41];
        ph_physical_uuid(i, bytes);
        ph_uuid_text(bytes, text);
        if (strcmp(text, uuid) == 0) {
            *device = &handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_NOT_FOUND;
}

PH_API(int, nvmlDeviceGetHandleByPciBusId_v2, (const char *text, nvml_device **device))
{
    unsigned domain, bus, slot;
    if (text == NULL || device == NULL) return NVML_INVALID_ARGUMENT;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return NVML_INVALID_ARGUMENT;
    }
    for (int i = 0; i < ph_physical_count(); i++) {
        int d, b, s;
        ph_physical_pci(i, &d, &b, &s);
        if ((unsigned)d == domain && (unsigned)b == bus && (unsigned)s == slot) {
            *device = &handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_NOT_FOUND;
}

PH_API(int, nvmlDeviceGetHandleByPciBusId, (const char *text, nvml_device **device))
{
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* ---- what a GPU is ---- */

PH_API(int, nvmlDeviceGetName, (nvml_device * device, char *name, unsigned length))
{
    return ordinal_of(device) < 0 ? NVML_INVALID_ARGUMENT : put_text(name, length, ph_spec()->name);
}

PH_API(int, nvmlDeviceGetUUID, (nvml_device * device, char *uuid, unsigned length))
{
    int ordinal = ordinal_of(device);
    if (ordinal < 0) return NVML_INVALID_ARGUMENT;
    unsigned char bytes[16];
    char text[41];
    ph_physical_uuid(ordinal, bytes);
    ph_uuid_text(bytes, text);
    return put_text(uuid, length, text);
}

PH_API(int, nvmlDeviceGetIndex, (nvml_device * device, unsigned *index))
{
    return put_unsigned(device, index, (unsigned)ordinal_of(device));
}

PH_API(int, nvmlDeviceGetMinorNumber, (nvml_device * device, unsigned *minor))
{
    return put_unsigned(device, minor, (unsigned)ordinal_of(device));
}

PH_API(int, nvmlDeviceGetCudaComputeCapability, (nvml_device * device, int *major, int *minor))
{
    if (ordinal_of(device) < 0 || major == NULL || minor == NULL) return NVML_INVALID_ARGUMENT;
    *major = ph_spec()->compute_major;
    *minor = ph_spec()->compute_minor;
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetPciInfo_v3, (nvml_device * device, struct nvml_pci_info *pci))
{
    int ordinal = ordinal_of(device);
    if (ordinal < 0 || pci == NULL) return NVML_INVALID_ARGUMENT;
    int domain, bus, slot, id = 0, subsystem = 0;
    ph_physical_pci(ordinal, &domain, &bus, &slot);
    ph_device_attribute(PH_ANY_DEVICE, PH_ATTRIBUTE_PCI_DEVICE_ID, &id);
    ph_device_attribute(PH_ANY_DEVICE, PH_ATTRIBUTE_PCI_SUBSYSTEM_ID, &subsystem);
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned)domain;
    pci->bus = (unsigned)bus;
    pci->device = (unsigned)slot;
    pci->pci_device_id = (unsigned)id;
    pci->pci_subsystem_id = (unsigned)subsystem;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.0",
             pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus,
             pci->device);
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetMaxClockInfo, (nvml_device * device, unsigned kind, unsigned *megahertz))
{
    enum { GRAPHICS, SM, MEMORY };
    int kilohertz;
    if (ordinal_of(device) < 0 || megahertz == NULL) return NVML_INVALID_ARGUMENT;
    if (kind > MEMORY) return NVML_NOT_SUPPORTED;
    int attribute = kind == MEMORY ? PH_ATTRIBUTE_MEMORY_CLOCK_KHZ : PH_ATTRIBUTE_CLOCK_RATE_KHZ;
    if (!ph_device_attribute(PH_ANY_DEVICE, attribute, &kilohertz)) return NVML_NOT_SUPPORTED;
    *megahertz = (unsigned)(kilohertz / 1000);
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetMigMode, (nvml_device * device, unsigned *current, unsigned *pending))
{
    int result = put_unsigned(device, current, 0); /* NVML_DEVICE_MIG_DISABLE */
    return result == NVML_SUCCESS ? put_unsigned(device, pending, 0) : result;
}

PH_API(int, nvmlDeviceGetComputeMode, (nvml_device * device, unsigned *mode))
{
    int value;
    if (ordinal_of(device) < 0 || mode == NULL) return NVML_INVALID_ARGUMENT;
    if (!ph_device_attribute(PH_ANY_DEVICE, 20 /* CU_DEVICE_ATTRIBUTE_COMPUTE_MODE */, &value))
        return NVML_NOT_SUPPORTED;
    *mode = (unsigned)value;
    return NVML_SUCCESS;
}

/* ---- memory ---- */

/* Only other processes know the memory of a GPU that CUDA_VISIBLE_DEVICES hides from this one. */
static int memory_of(nvml_device *device, struct nvml_memory *memory)
{
    int ordinal = ordinal_of(device);
    if (ordinal < 0 || memory == NULL) return NVML_INVALID_ARGUMENT;
    int visible = ph_physical_visible(ordinal);
    if (visible < 0) return NVML_NO_PERMISSION;
    uint64_t free_bytes, total_bytes;
    ph_device_memory(visible, &free_bytes, &total_bytes);
    memory->total = total_bytes;
    memory->free = free_bytes;
    memory->used = total_bytes - free_bytes;
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetMemoryInfo, (nvml_device * device, struct nvml_memory *memory))
{
    return memory_of(device, memory);
}

PH_API(int, nvmlDeviceGetMemoryInfo_v2, (nvml_device * device, struct nvml_memory_v2 *memory))
{
    struct nvml_memory plain;
    if (memory == NULL) return NVML_INVALID_ARGUMENT;
    if (memory->version != (sizeof *memory | 2u << 24)) return NVML_VERSION_MISMATCH;
    int result = memory_of(device, &plain);
    if (result != NVML_SUCCESS) return result;
    memory->total = plain.total;
    /* the firmware's share is not part of CUDA's total, and its size is unknown */
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

/* The processes on a GPU that this process knows of: itself, if it holds memory there. */
static int processes_of(nvml_device *device, unsigned *count, void *infos, size_t size)
{
    if (count == NULL || ordinal_of(device) < 0) return NVML_INVALID_ARGUMENT;
    struct nvml_memory memory;
    int result = memory_of(device, &memory);
    if (result == NVML_NO_PERMISSION || (result == NVML_SUCCESS && memory.used == 0)) {
        *count = 0;
        return NVML_SUCCESS;
    }
    if (result != NVML_SUCCESS) return result;
    if (*count < 1 || infos == NULL) {
        *count = 1;
        return NVML_INSUFFICIENT_SIZE;
    }
    struct nvml_process_v2 process = {(unsigned)getpid(), memory.used, 0xffffffffu, 0xffffffffu};
    memcpy(infos, &process, size);
    *count = 1;
    return NVML_SUCCESS;
}

PH_API(int, nvmlDeviceGetComputeRunningProcesses,
       (nvml_device * device, unsigned *count, struct nvml_process_v1 *infos))
{
    return processes_of(device, count, infos, sizeof *infos);
}

PH_API(int, nvmlDeviceGetComputeRunningProcesses_v2,
       (nvml_device * device, unsigned *count, struct nvml_process_v2 *infos))
{
    return processes_of(device, count, infos, sizeof *infos);
}

PH_API(int, nvmlDeviceGetComputeRunningProcesses_v3,
       (nvml_device * device, unsigned *count, struct nvml_process_v2 *infos))
{
    return processes_of(device, count, infos, sizeof *infos);
}

/* ---- how GPUs are joined ---- */

static bool has_link(nvml_device *device, unsigned link)
{
    return ordinal_of(device) >= 0 && link < (unsigned)ph_spec()->nvlinks;
}

PH_API(int, nvmlDeviceGetNvLinkState, (nvml_device * device, unsigned link, unsigned *active))
{
    return has_link(device, link) ? put_unsigned(device, active, 1) : NVML_INVALID_ARGUMENT;
}

/* Every NVLink of our servers ends at an NVSwitch; topology files know no other wiring. PyTorch
 * takes the first failing link as the end of the list. */
PH_API(int, nvmlDeviceGetNvLinkRemoteDeviceType,
       (nvml_device * device, unsigned link, unsigned *type))
{
    enum { NVML_NVLINK_DEVICE_TYPE_SWITCH = 2 };
    return has_link(device, link) ? put_unsigned(device, type, NVML_NVLINK_DEVICE_TYPE_SWITCH)
                                  : NVML_INVALID_ARGUMENT;
}

PH_API(int, nvmlDeviceGetP2PStatus,
       (nvml_device * device, nvml_device *peer, unsigned index, unsigned *status))
{
    enum { READ, WRITE, NVLINK, ATOMICS, PCI, OK = 0, CHIPSET_NOT_SUPPORTED = 1 };
    int first = ordinal_of(device), second = ordinal_of(peer);
    if (first < 0 || second < 0 || status == NULL || index > PCI) return NVML_INVALID_ARGUMENT;
    bool nvlink = ph_spec()->nvlinks > 0;
    bool possible = index == NVLINK || index == ATOMICS ? nvlink : index == PCI ? !nvlink : true;
    *status = possible && first != second ? OK : CHIPSET_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* No fabric handles: memory is shared within a node only. */
PH_API(int, nvmlDeviceGetGpuFabricInfoV, (nvml_device * device, struct nvml_fabric_info *info))
{
    if (ordinal_of(device) < 0 || info == NULL) return NVML_INVALID_ARGUMENT;
    unsigned given = info->version;
    unsigned bytes = given >> 24 == 2 ? sizeof *info : given >> 24 == 3 ? sizeof *info + 4 : 0;
    if (bytes == 0 || (given & 0xffffff) != bytes) return NVML_VERSION_MISMATCH;
    memset(info, 0, bytes); /* state 0: NVML_GPU_FABRIC_STATE_NOT_SUPPORTED */
    info->version = given;
    return NVML_SUCCESS;
}
