/* cudart.h - the little that the runtime API's files share: error codes and dim3 (facts of CUDA
 * 13's ABI). */
#ifndef PH_CUDART_H
#define PH_CUDART_H
#include "base/core.h"

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INVALID_SYMBOL = 13,
    CUDA_INVALID_FUNCTION = 98,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_FILE_NOT_FOUND = 301,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_HOST_ALREADY_REGISTERED = 712,
    CUDA_HOST_NOT_REGISTERED = 713,
    CUDA_NOT_SUPPORTED = 801
};
struct ph_dim3 {
    unsigned x, y, z;
};

/* ---- simulated/cuda/kernels.c ---- */
struct ph_kernel; /* what cudaKernel_t, CUfunction and host functions stand for */
struct ph_kernel_param;
struct ph_kernel *ph_kernel_resolve(const void *handle); /* NULL: not a kernel */
struct ph_kernel *ph_kernel_make(const char *name);      /* for a function of a loaded module */
struct ph_launch {
    struct ph_dim3 grid, block, cluster;
    size_t shared_bytes;
    void *stream;
};
int ph_launch(struct ph_kernel *kernel, const struct ph_launch *launch, void **arguments);
/* cudaLaunchAttribute and CUlaunchAttribute: one layout, one numbering */
struct ph_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct ph_dim3 cluster;
    } value;
};
/* all zero: none asked for */
struct ph_dim3 ph_cluster(const struct ph_launch_attribute *attributes, unsigned count);
struct ph_kernel_facts {
    bool known;
    unsigned registers, max_threads, static_shared, local_bytes;
    unsigned param_count;
    const struct ph_kernel_param *params;
};
const struct ph_kernel_facts *ph_kernel_facts(struct ph_kernel *kernel);
void ph_kernel_set_facts(struct ph_kernel *kernel, const struct ph_kernel_facts *facts);
int ph_occupancy(struct ph_kernel *kernel, int block_threads, size_t dynamic_shared);
const char *ph_kernel_name(const struct ph_kernel *kernel);
/* ---- signature.c: the same bytes in a leader and in a simulated rank ---- */
/* Makes `signature` that of a kernel launch; until ph_launch_over, ph_pack_parameters knows the
 * launch's parameters. */
void ph_launch_signature(struct ph_pack *signature, const char *name,
                         const struct ph_kernel_facts *facts, const struct ph_launch *launch,
                         void **arguments);
void ph_launch_over(void);
/* of the launch this thread is making: bytes with addresses zeroed */
void ph_pack_parameters(struct ph_pack *pack);
/* `op`: ph_memory_op; `from` and `to`: ph_memory_kind */
void ph_memory_signature(struct ph_pack *signature, int op, uint64_t bytes, int from, int to);
/* whether the host waits for the copy */
bool ph_copy_waits(uint64_t bytes, int from, int to, bool blocking);
bool ph_operator_identity(uint64_t *identity); /* duration.c */
/* A driver function by its name without suffix: the second version is the one that current headers
 * mean, unless only the first is answered. */
void *ph_driver_symbol(const char *name); /* simulated/cuda/driver.c */
void ph_device_use(
    int device); /* simulated/cuda/driver.c: its primary context exists from now on */
/* ---- simulated/memory/copies.c: one copy or fill with its values, its time and its
 * synchronisation ----
 */
int ph_copy(void *destination, const void *source, size_t bytes, void *stream, bool blocking);
#endif
