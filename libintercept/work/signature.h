/* work/signature.h - signatures: what a launch, a copy or a fill is to the kernel table
 * (work/signature.c). A leader and a simulated rank make the same bytes here. */
#ifndef PH_SIGNATURE_H
#define PH_SIGNATURE_H
#include "base/host_calls.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "work/cudart.h"
#include "work/kernel_info.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t ph_signature_key(const struct ph_pack *signature);
/* the class of a signature's call: launch, gemm or dnn */
enum ph_call ph_call_of(const struct ph_pack *signature);

/* ---- kernels ---- */
struct ph_launch {
    struct ph_dim3 grid, block, cluster;
    size_t shared_bytes;
    void *stream;
};
struct ph_runtime_launch { /* cudaLaunchConfig_t */
    struct ph_dim3 grid, block;
    size_t shared_bytes;
    void *stream;
    struct ph_launch_attribute *attributes;
    unsigned attribute_count;
};
struct ph_driver_launch { /* CUlaunchConfig */
    struct ph_dim3 grid, block;
    unsigned shared_bytes;
    void *stream;
    struct ph_launch_attribute *attributes;
    unsigned attribute_count;
};
struct ph_launch ph_launch_of_runtime(const struct ph_runtime_launch *config);
struct ph_launch ph_launch_of_driver(const struct ph_driver_launch *config);
struct ph_kernel_facts {
    bool known;
    unsigned registers, max_threads, static_shared, local_bytes;
    unsigned param_count;
    const struct ph_kernel_param *params;
};
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
#endif
