/* device.h - which GPUs a process sees, and what they say of themselves.
 *
 * Why it exists: shim.h shows the API files one GPU model; three of them (the device queries, NVML
 * and cudaSetDevice) need to know the node's GPUs as well. Rule: an ordinal is always either
 * *visible* (what CUDA's calls take, after CUDA_VISIBLE_DEVICES) or *physical* (the GPU's place on
 * the node, what NVML takes); names say which. */
#ifndef PH_DEVICE_H
#define PH_DEVICE_H
#include "base/shim.h"

/* CUdevice_attribute values that more than one file needs (cuda.h of CUDA 13.0; facts of the ABI).
 */
enum ph_attribute {
    PH_ATTRIBUTE_CLOCK_RATE_KHZ = 13,
    PH_ATTRIBUTE_MULTIPROCESSORS = 16,
    PH_ATTRIBUTE_PCI_BUS = 33,
    PH_ATTRIBUTE_PCI_DEVICE = 34,
    PH_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
    PH_ATTRIBUTE_MEMORY_BUS_BITS = 37,
    PH_ATTRIBUTE_PCI_DOMAIN = 50,
    PH_ATTRIBUTE_COMPUTE_MAJOR = 75,
    PH_ATTRIBUTE_COMPUTE_MINOR = 76,
    PH_ATTRIBUTE_PCI_DEVICE_ID = 139,
    PH_ATTRIBUTE_PCI_SUBSYSTEM_ID = 140,
    PH_ATTRIBUTE_LIMIT = 192 /* size of ph_device_spec.attributes */
};

/* Makes `device` (visible ordinal, checked by the caller) this thread's current device. */
void ph_device_set(int device);

/* GPUs of the node, visible or not (PHANTORA_GPUS_PER_NODE; 1 when the variable is absent). */
int ph_physical_count(void);

/* The visible ordinal of a physical GPU, -1 when CUDA_VISIBLE_DEVICES hides it. */
int ph_physical_visible(int physical);

/* A UUID that is the same in every process and run for the same cluster name, node and GPU, and
 * differs between GPUs. */
void ph_physical_uuid(int physical, unsigned char uuid[16]);

/* PCI address of a GPU on its node: distinct per GPU, the same in every run. */
void ph_physical_pci(int physical, int *domain, int *bus, int *device);

/* The value of CUdevice_attribute `attribute` for a visible ordinal (or PH_ANY_DEVICE: all but the
 * PCI address is the same for every GPU of a node). False when the GPU's data file does not give
 * it. */
enum { PH_ANY_DEVICE = -1 };
bool ph_device_attribute(int device, int attribute, int *value);

/* Writes "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and its NUL (41 bytes), as the driver spells a
 * UUID. */
void ph_uuid_text(const unsigned char uuid[16], char text[41]);

/* What cudaDeviceGetStreamPriorityRange answers on an H200 (measured): the greatest priority is the
 * lowest number. */
enum { PH_STREAM_PRIORITY_LEAST = 0, PH_STREAM_PRIORITY_GREATEST = -5 };

#endif
