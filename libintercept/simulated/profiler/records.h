/* simulated/profiler/records.h - the layouts of CUPTI's activity records.
 *
 * Why it exists: Kineto reads the records of the CUDA that PyTorch was compiled with. These hold
 * for CUDA 12.0 to 13.2: a newer record of a kind only adds members behind the older ones, and the
 * newest is laid out here (CUpti_ActivityKernel11, Memcpy6, Memset4, API, ExternalCorrelation).
 * Facts of cupti_activity.h; a test compares them with the installed header. */
#ifndef PH_PROFILER_RECORDS_H
#define PH_PROFILER_RECORDS_H
#include <stdint.h>

enum ph_activity_kind {
    PH_ACTIVITY_MEMCPY = 1,
    PH_ACTIVITY_MEMSET = 2,
    PH_ACTIVITY_KERNEL = 3,
    PH_ACTIVITY_DRIVER = 4,
    PH_ACTIVITY_RUNTIME = 5,
    PH_ACTIVITY_CONCURRENT_KERNEL = 10,
    PH_ACTIVITY_EXTERNAL_CORRELATION = 39,
    PH_ACTIVITY_KINDS = 64
};

#define PH_PACKED __attribute__((packed, aligned(8)))

struct ph_kernel_record {
    uint32_t kind;
    uint8_t cache_config, shared_memory_config;
    uint16_t registers;
    uint32_t partitioned_requested, partitioned_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout_requested, carveout, padding;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit, graph;
    void *access_policy;
    uint32_t channel, channel_type;
    uint32_t cluster[3], cluster_policy;
    uint64_t local_total_v2;
    uint32_t most_cluster_size, most_clusters;
    uint8_t device_launched, padding3[7];
    int32_t priority;
    uint32_t padding4;
} PH_PACKED;

struct ph_copy_record {
    uint32_t kind;
    uint8_t copy, source, destination, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, pad;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type;
    uint8_t device_launched, pad2[3];
    uint64_t copies;
} PH_PACKED;

struct ph_fill_record {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory;
    uint32_t pad;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph, channel, channel_type;
    uint8_t device_launched, pad2[3];
} PH_PACKED;

struct ph_call_record {
    uint32_t kind, id;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
} PH_PACKED;

struct ph_external_record {
    uint32_t kind, external_kind;
    uint64_t external;
    uint32_t correlation, reserved;
} PH_PACKED;
#endif
