/* shim.h - what every API file of the interceptor may use of the core, and nothing else.
 *
 * Why it exists: the API files (simulated/cuda/cudart.c, simulated/math/cublas.c, ..., nccl.c) are
 * thin translations of foreign ABIs; all state lives behind this face. Rule: no API file keeps a
 * stream, an allocation or a time of its own. */
#ifndef PH_SHIM_H
#define PH_SHIM_H
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a job gets of an exported function, stated beside the function: a file sets PH_CLASS before
 * its includes, and again where it changes. It is the section that the function lies in, so the
 * built library says it of every function, and docs/coverage.md is made from that
 * (tools/coverage.py). */
/* does what the real one does: state, time, and values as far as they are kept */
#define PH_SIMULATED "ph_simulated"
/* takes the time and memory of the real one; what it computes comes from the values library, or is
 * 0 */
#define PH_ACCOUNTED "ph_accounted"
/* accepted; on a GPU it changes at most speed or tools, here nothing */
#define PH_HINT "ph_hint"
#define PH_PASSED "ph_passed" /* NVIDIA's own library answers */
/* the API's "not supported", and a line on stderr and in the report */
#define PH_REFUSED "ph_refused"
#ifdef PH_CLASS
#define PH_EXPORT __attribute__((visibility("default"), section(PH_CLASS)))
#else /* for what is no function of NVIDIA's */
#define PH_EXPORT __attribute__((visibility("default")))
#endif
/* Declares and defines an exported function: -Wmissing-prototypes asks for a declaration, and no
 * header of ours holds one. */
#define PH_API(type, name, parameters) \
    PH_EXPORT type name parameters;    \
    PH_EXPORT type name parameters
#define PH_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- notes (link/diagnostics.c): what the user must know ---- */
/* once per function: a line on stderr, and in the report */
void ph_unsupported(const char *function);
/* "check this before you trust the result" */
void ph_warn(const char *format, ...) PH_PRINTF(1, 2);
/* our own failure, not the job's: one line, exit 70 */
_Noreturn void ph_die(const char *format, ...) PH_PRINTF(1, 2);

/* ---- symbols by name (lookup.c) ---- */
typedef void *(*ph_dlsym_type)(void *, const char *);
void *ph_own_symbol(const char *name); /* of this library; NULL when it has none */
ph_dlsym_type ph_real_dlsym(void);     /* the C library's */

/* ---- msgpack (base/msgpack.c): canonical encoding, shortest form of every integer ---- */
struct ph_pack {
    unsigned char *data;
    size_t length, capacity;
};
void ph_pack_free(struct ph_pack *pack);
void ph_pack_nil(struct ph_pack *pack);
void ph_pack_int(struct ph_pack *pack, int64_t value);
void ph_pack_uint(struct ph_pack *pack, uint64_t value);
void ph_pack_double(struct ph_pack *pack, double value);
void ph_pack_str(struct ph_pack *pack, const char *text);
void ph_pack_bin(struct ph_pack *pack, const void *bytes, size_t length);
void ph_pack_array(struct ph_pack *pack, uint32_t count);
void ph_pack_map(struct ph_pack *pack, uint32_t count);
/* already packed values */
void ph_pack_raw(struct ph_pack *pack, const void *bytes, size_t length);

/* ---- classes of calls that take host time (time/host_model.c) ---- */
/* "launch", "gemm", ... as in device.conf, HOST messages and the database */
const char *ph_call_name(enum ph_call call);
/* the class of a signature's call: launch, gemm or dnn */
enum ph_call ph_call_of(const struct ph_pack *signature);

/* ---- the GPU that we imitate (device.c): read from RUN_DIR/device.conf ---- */
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
/* simulated/memory/memory.c */
void ph_device_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* ---- the timeline (timeline.c) ---- */
/* Puts one piece of GPU work on a stream. `signature` is the canonical msgpack of [kind, fields]
 * (docs/wire-protocol.md); the duration comes from the shared table, else from the hub. `stream` is
 * a cudaStream_t/CUstream as the job passes it. */
/* or in the graph that the stream is captured into */
void ph_submit(void *stream, const struct ph_pack *signature);

#endif
