/* base/device.h - the simulated GPU's data, the GPUs that a process sees, and their attributes.
 *
 * Rule: an ordinal is either *visible* or *physical*, and its name says which. CUDA calls take
 * visible ordinals, which CUDA_VISIBLE_DEVICES defines. NVML takes physical ordinals, the
 * positions of the GPUs on the node. */
#ifndef PH_DEVICE_H
#define PH_DEVICE_H
#include "base/host_calls.h"
#include <stdbool.h>
#include <stdint.h>

/* ---- the simulated GPU (base/device.c): read from RUN_DIR/device.conf ---- */
enum { PH_GPU_VARIATIONS = 8, PH_POWER_STEPS = 16, PH_POWER_CLOCKS = 2 * PH_POWER_STEPS + 1 };
struct ph_power {         /* how the power limit decides clocks (time/power.c) */
    int64_t available_uw; /* what the limit leaves beyond the idle power; 0: no limit is known */
    int64_t drawn_uw[PH_BOUND_BY_COUNT]; /* by a kernel at the highest clock, beyond idle */
    /* femtojoules per FLOP of products, by precision, and of attention, at the highest clock; 0: by
     * time, as drawn_uw */
    int64_t flop_fj[PH_PRECISIONS];
    int64_t attention_flop_fj;
    int64_t attention_base_uw; /* what attention of known FLOP draws beside that, however few */
    int64_t link_fj;           /* femtojoules per byte that is sent */
    int64_t awake_uw;          /* of links that have sent within the window */
    int64_t window_ns;         /* over which the limit holds the mean power */
    int64_t highest_khz;
    int64_t recorded_khz[PH_BOUND_BY_COUNT]; /* of the recorded times */
    /* the clock above which kernels take no less time; 0: their time does not follow the clock */
    int64_t fastest_khz[PH_BOUND_BY_COUNT];
    int64_t follows_permille[PH_BOUND_BY_COUNT]; /* the share of the time that follows the clock */
    /* the clock at demands of 1, 1 + 1/16, 1 + 2/16... times what is available */
    int64_t clock_khz[PH_POWER_CLOCKS];
    /* GPU variation, by physical GPU: how much lower than the median's its clock is at the limit;
     * negative: higher */
    int64_t variation_permille[PH_GPU_VARIATIONS];
};
struct ph_device_spec {
    char name[64];          /* "NVIDIA H200" */
    uint64_t memory_bytes;  /* total, as cudaMemGetInfo reports it */
    uint64_t context_bytes; /* memory that a fresh context takes */
    uint64_t comm_bytes;    /* memory that the first NCCL communicator takes */
    int compute_major, compute_minor;
    int multiprocessors;
    int nvlinks;         /* NVLink links per GPU, 0 when none */
    int attributes[192]; /* CUdevice_attribute -> value */
    /* host costs and latencies, nanoseconds */
    /* host time that a call of each class takes in the driver or library, without waiting */
    uint64_t call_cost[PH_CALLS];
    uint64_t launch_latency_ns; /* from the launch call to the kernel's start on an idle stream */
    uint64_t kernel_gap_ns;     /* between back-to-back kernels in a stream */
    /* added to it while kernels of two or more other streams wait for events */
    uint64_t crowd_gap_ns;
    uint64_t graph_gap_ns; /* as kernel_gap_ns, between the kernels of one graph launch */
    /* host time of cudaGraphLaunch: per launch, and per op of the graph */
    uint64_t graph_launch_ns;
    uint64_t graph_node_ns;
    /* unfinished queue slots that one stream may hold before a launch waits; 0: no limit */
    uint64_t launch_queue;
    /* by how much of its own time a kernel makes another stream that computes longer */
    uint64_t other_stream_permille;
    uint64_t other_stream_lists_permille; /* of kernels that work on lists of tensors */
    struct ph_power power;
};
/* Never NULL. Dies with one line when device.conf cannot be read. */
const struct ph_device_spec *ph_spec(void);
/* visible devices: GPUs of this node after CUDA_VISIBLE_DEVICES */
int ph_device_count(void);
int ph_device_physical(int device); /* visible ordinal -> physical ordinal */
int ph_device_current(void);        /* this thread's current visible ordinal */
void ph_device_uuid(int device, unsigned char uuid[16]);

/* CUdevice_attribute values that more than one file needs (cuda.h of CUDA 13.0; part of the ABI).
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

/* The UUID of a GPU. It depends only on the cluster name, node and GPU, so it is the same in every
 * process and run. */
void ph_physical_uuid(int physical, unsigned char uuid[16]);

/* PCI address of a GPU on its node. It is distinct per GPU and the same in every run. */
void ph_physical_pci(int physical, int *domain, int *bus, int *device);

/* The value of CUdevice_attribute `attribute` for a visible ordinal or PH_ANY_DEVICE. Only the PCI
 * address differs between the GPUs of a node. False when the GPU's data file does not give the
 * attribute. */
enum { PH_ANY_DEVICE = -1 };
bool ph_device_attribute(int device, int attribute, int *value);

/* Writes "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and its NUL (41 bytes), which is the driver's
 * spelling of a UUID. */
void ph_uuid_text(const unsigned char uuid[16], char text[41]);

/* Result of cudaDeviceGetStreamPriorityRange on an H200 (measured). The greatest priority is the
 * lowest number. */
enum { PH_STREAM_PRIORITY_LEAST = 0, PH_STREAM_PRIORITY_GREATEST = -5 };

#endif
