/* base/device.h - the GPU that we imitate, which GPUs a process sees, and what they say of
 * themselves.
 *
 * Rule: an ordinal is always either *visible* (what CUDA's calls take, after CUDA_VISIBLE_DEVICES)
 * or *physical* (the GPU's place on the node, what NVML takes); names say which. */
#ifndef PH_DEVICE_H
#define PH_DEVICE_H
#include "base/host_calls.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- the GPU that we imitate (base/device.c): read from RUN_DIR/device.conf ---- */
enum { PH_LOTS = 8 };
struct ph_power { /* how the power limit decides clocks (power.c); full_permille 0: not at all */
    uint64_t low_permille, full_permille, window_ns;
    uint64_t weight_permille[PH_BOUND_BY_COUNT], gain_permille[PH_BOUND_BY_COUNT];
    /* by physical GPU: slower than the median at the limit; below 0: faster */
    int64_t lot_permille[PH_LOTS];
};
struct ph_device_spec {
    char name[64];          /* "NVIDIA H200" */
    uint64_t memory_bytes;  /* total, as cudaMemGetInfo reports it */
    uint64_t context_bytes; /* what a fresh context takes of it */
    uint64_t comm_bytes;    /* what the first NCCL communicator takes */
    int compute_major, compute_minor;
    int multiprocessors;
    int nvlinks;         /* NVLink links per GPU, 0 when none */
    int attributes[192]; /* CUdevice_attribute -> value */
    /* host costs and latencies, nanoseconds */
    /* host time that a call of each class takes in the driver or library, waiting apart */
    uint64_t call_cost[PH_CALLS];
    uint64_t launch_latency_ns; /* from the call to the first cycle on an idle stream */
    uint64_t kernel_gap_ns;     /* between back-to-back kernels in a stream */
    uint64_t graph_gap_ns;      /* as kernel_gap_ns, in a launch of a CUDA graph */
    uint64_t graph_launch_ns;   /* host time of cudaGraphLaunch, and of each node in it */
    uint64_t graph_node_ns;
    /* works of one stream that may be unfinished before a launch waits; 0: any number */
    uint64_t launch_queue;
    struct ph_power power;
};
/* never NULL; dies with one line when the run directory is unreadable */
const struct ph_device_spec *ph_spec(void);
/* visible devices: GPUs of this node after CUDA_VISIBLE_DEVICES */
int ph_device_count(void);
int ph_device_physical(int device); /* visible ordinal -> ordinal on the node */
int ph_device_current(void);        /* this thread's current visible ordinal */
void ph_device_uuid(int device, unsigned char uuid[16]);

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
