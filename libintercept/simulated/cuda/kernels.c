/* kernels.c - registered and loaded kernels, and their launches as signatures on a stream.
 *
 * Why it exists: stock PyTorch registers about 21,500 kernels at import and launches them through
 * __cudaLaunchKernel or cudaLaunchKernelExC. Code of Triton and NVRTC uses cuLaunchKernel. All of
 * them end in ph_launch. */
#define PH_CLASS PH_SIMULATED
#define _GNU_SOURCE /* dladdr */
#include "base/fork.h"
#include "simulated/cuda/kernels.h"
#include "base/hash_map.h"
#include "base/log.h"
#include "trace/trace_log.h"
#include "cudagraph/graph.h"
#include "cudagraph/submit.h"
#include "simulated/cuda/runtime.h"
#include "simulated/memory/memory.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL_MAGIC = 0x50484b4e };

struct ph_kernel {
    uint32_t magic;
    _Atomic bool facts_read;
    const char *name;
    struct ph_kernel_facts facts;
};

static struct ph_hash_map kernels; /* by host function */
static pthread_rwlock_t PH_FREE_IN_CHILD kernels_lock = PTHREAD_RWLOCK_INITIALIZER;

static struct ph_kernel *lookup(const void *host_function)
{
    pthread_rwlock_rdlock(&kernels_lock);
    struct ph_kernel *kernel =
        (struct ph_kernel *)ph_hash_map_get(&kernels, (uintptr_t)host_function);
    pthread_rwlock_unlock(&kernels_lock);
    return kernel;
}

struct ph_kernel *ph_kernel_make(const char *name)
{
    struct ph_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) ph_die("out of host memory");
    kernel->magic = KERNEL_MAGIC;
    kernel->name = strdup(name);
    return kernel;
}

struct ph_kernel *ph_kernel_resolve(const void *handle)
{
    if (!handle) return NULL;
    struct ph_kernel *kernel = lookup(handle);
    if (kernel) return kernel;
    /* Not a host function, so a handle that we returned. Those are aligned heap pointers. */
    kernel = (struct ph_kernel *)handle;
    return ((uintptr_t)handle & 15) == 0 && kernel->magic == KERNEL_MAGIC ? kernel : NULL;
}

/* ---- registration: called by the static initialisers of CUDA code ---- */
PH_API(void **, __cudaRegisterFatBinary, (void *image))
{
    void **handle = malloc(sizeof *handle);
    if (handle) *handle = image;
    return handle;
}
PH_API(void, __cudaRegisterFatBinaryEnd, (void **handle)) { (void)handle; }
PH_API(void, __cudaUnregisterFatBinary, (void **handle)) { free(handle); }
PH_API(char, __cudaInitModule, (void **handle)) { return handle != NULL; }

PH_API(void, __cudaRegisterFunction,
       (void **handle, const char *host_function, char *device_function, const char *device_name,
        int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp_size))
{
    (void)handle, (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block,
        (void)grid, (void)warp_size;
    struct ph_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) ph_die("out of host memory");
    kernel->magic = KERNEL_MAGIC;
    kernel->name = device_name; /* in the library's read-only data */
    pthread_rwlock_wrlock(&kernels_lock);
    /* A function that is registered twice stays the first kernel. */
    if (!ph_hash_map_get(&kernels, (uintptr_t)host_function))
        ph_hash_map_put(&kernels, (uintptr_t)host_function, (uintptr_t)kernel);
    pthread_rwlock_unlock(&kernels_lock);
}

struct variable {
    const void *host;
    size_t bytes;
    void *device[8];
    struct variable *next;
};
static struct variable *variables;
/* for what the first use of a variable or kernel fills in */
static pthread_mutex_t PH_FREE_IN_CHILD lazy_lock = PTHREAD_MUTEX_INITIALIZER;

PH_API(void, __cudaRegisterVar,
       (void **handle, char *host, char *address, const char *name, int external, size_t bytes,
        int constant, int global))
{
    (void)handle, (void)address, (void)name, (void)external, (void)constant, (void)global;
    struct variable *variable = calloc(1, sizeof *variable);
    if (!variable) ph_die("out of host memory");
    variable->host = host;
    variable->bytes = bytes;
    pthread_rwlock_wrlock(&kernels_lock);
    variable->next = variables;
    variables = variable;
    pthread_rwlock_unlock(&kernels_lock);
}

/* A device variable gets its address on demand: thousands are registered, few are ever used by
 * name. */
static void *variable_address(const void *host, size_t *bytes)
{
    if (ph_forked()) return NULL;
    ph_touch();
    pthread_rwlock_rdlock(&kernels_lock);
    struct variable *variable = variables;
    while (variable && variable->host != host) variable = variable->next;
    pthread_rwlock_unlock(&kernels_lock);
    if (!variable) return NULL;
    int device = ph_device_current();
    if (bytes) *bytes = variable->bytes;
    pthread_mutex_lock(&lazy_lock);
    void *address = variable->device[device];
    if (!address) address = variable->device[device] = ph_device_alloc(device, variable->bytes);
    pthread_mutex_unlock(&lazy_lock);
    return address;
}

PH_API(int, cudaGetSymbolAddress, (void **address, const void *symbol))
{
    *address = variable_address(symbol, NULL);
    return ph_set_error(*address ? CUDA_OK : CUDA_INVALID_SYMBOL);
}

PH_API(int, cudaGetSymbolSize, (size_t *bytes, const void *symbol))
{
    return ph_set_error(variable_address(symbol, bytes) ? CUDA_OK : CUDA_INVALID_SYMBOL);
}

PH_API(int, cudaMemcpyToSymbol,
       (const void *symbol, const void *source, size_t bytes, size_t offset, int kind))
{
    (void)kind;
    size_t size;
    char *address = variable_address(symbol, &size);
    if (!address) return ph_set_error(CUDA_INVALID_SYMBOL);
    if (offset + bytes > size) return ph_set_error(CUDA_INVALID_VALUE);
    return ph_set_error(ph_copy(address + offset, source, bytes, NULL, true));
}

/* ---- facts about a kernel's code ---- */
const char *ph_kernel_name(const struct ph_kernel *kernel) { return kernel->name; }

struct ph_kernel_facts *ph_kernel_facts(struct ph_kernel *kernel)
{
    if (atomic_load_explicit(&kernel->facts_read, memory_order_acquire)) return &kernel->facts;
    const struct ph_kernel_info *info = ph_kernel_info(kernel->name);
    pthread_mutex_lock(&lazy_lock);
    if (!kernel->facts_read) {
        if (info)
            kernel->facts = (struct ph_kernel_facts){.known = true,
                                                     .registers = info->registers,
                                                     .max_threads = info->max_threads,
                                                     .static_shared = info->static_shared_bytes,
                                                     .local_bytes = info->stack_bytes,
                                                     .param_count = info->param_count,
                                                     .params = ph_kernel_params(info)};
        atomic_store_explicit(&kernel->facts_read, true, memory_order_release);
    }
    pthread_mutex_unlock(&lazy_lock);
    return &kernel->facts;
}

void ph_kernel_set_facts(struct ph_kernel *kernel, const struct ph_kernel_facts *facts)
{
    kernel->facts = *facts;
    atomic_store_explicit(&kernel->facts_read, true, memory_order_release);
}

struct function_attributes { /* cudaFuncAttributes, driver_types.h of CUDA 13 */
    size_t shared_bytes, constant_bytes, local_bytes;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared,
        carveout, cluster_must_be_set, cluster[3];
    int cluster_policy, non_portable_cluster, reserved[16];
};

PH_API(int, cudaFuncGetAttributes, (struct function_attributes *attributes, const void *function))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return ph_set_error(CUDA_INVALID_FUNCTION);
    const struct ph_kernel_facts *facts = ph_kernel_facts(kernel);
    const struct ph_device_spec *spec = ph_spec();
    if (!facts->known)
        ph_warn("nothing is known of the code of kernel %s: its attributes are a guess",
                kernel->name);
    int version = spec->compute_major * 10 + spec->compute_minor;
    memset(attributes, 0, sizeof *attributes);
    attributes->shared_bytes = facts->static_shared;
    attributes->local_bytes = facts->local_bytes;
    attributes->max_threads = facts->known && facts->max_threads ? (int)facts->max_threads : 1024;
    attributes->registers = facts->known ? (int)facts->registers : 32;
    attributes->ptx_version = attributes->binary_version = version;
    attributes->max_dynamic_shared = 49152 - (int)facts->static_shared;
    attributes->carveout = -1;
    return CUDA_OK;
}

PH_API(int, cudaFuncSetAttribute, (const void *function, int attribute, int value))
{
    (void)attribute, (void)value; /* shared memory and clusters are taken from each launch */
    return ph_set_error(ph_kernel_resolve(function) ? CUDA_OK : CUDA_INVALID_FUNCTION);
}

/* How many blocks of a kernel fit on one multiprocessor: the occupancy rules of the CUDA
 * programming guide for compute capability 8 and 9 (registers in units of 256 per warp, warps in
 * fours, 1 KiB of shared memory reserved per block, units of 128 bytes). */
int ph_occupancy(struct ph_kernel *kernel, int block_threads, size_t dynamic_shared)
{
    enum { MAX_THREADS = 39, MAX_BLOCKS = 106, REGISTERS = 82, SHARED = 81, RESERVED = 111 };
    const int *attribute = ph_spec()->attributes;
    const struct ph_kernel_facts *facts = ph_kernel_facts(kernel);
    if (block_threads <= 0) return 0;
    int warps = (block_threads + 31) / 32, blocks = attribute[MAX_BLOCKS];
    if (attribute[MAX_THREADS] / 32 / warps < blocks) blocks = attribute[MAX_THREADS] / 32 / warps;
    int registers_per_warp = ((int)(facts->known ? facts->registers : 32) * 32 + 255) / 256 * 256;
    if (registers_per_warp) {
        int warps_held = attribute[REGISTERS] / registers_per_warp / 4 * 4;
        if (warps_held / warps < blocks) blocks = warps_held / warps;
    }
    size_t shared =
        (facts->static_shared + dynamic_shared + (size_t)attribute[RESERVED] + 127) / 128 * 128;
    if (shared && (size_t)attribute[SHARED] / shared < (size_t)blocks)
        blocks = (int)((size_t)attribute[SHARED] / shared);
    return blocks;
}

PH_API(int, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       (int *blocks, const void *function, int block, size_t shared, unsigned flags))
{
    (void)flags;
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return ph_set_error(CUDA_INVALID_FUNCTION);
    *blocks = ph_occupancy(kernel, block, shared);
    return CUDA_OK;
}
PH_API(int, cudaOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, const void *function, int block, size_t shared))
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block, shared,
                                                                  0);
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
/* ---- launching ---- */
int ph_launch(struct ph_kernel *kernel, const struct ph_launch *launch, void **arguments)
{
    static _Thread_local struct ph_signature signature;
    struct ph_kernel_facts *facts = ph_kernel_facts(kernel);
    struct ph_stream *stream = ph_stream_resolve(launch->stream);
    if (!stream) return CUDA_INVALID_HANDLE;
    int refused = PH_CAPTURING(stream);
    if (refused > 0) return refused;
    if (launch->grid.x == 0 || launch->grid.y == 0 || launch->grid.z == 0 ||
        launch->block.x * launch->block.y * launch->block.z == 0)
        return CUDA_INVALID_VALUE;
    ph_launch_signature(&signature, kernel->name, facts, launch, arguments);
    PH_TRACE(ph_trace_code(facts->registers, facts->static_shared));
    ph_submit_to(stream, refused != 0, &signature);
    return CUDA_OK;
}

PH_API(int, __cudaGetKernel, (void **kernel, const void *host_function))
{
    *kernel = lookup(host_function);
    return ph_set_error(*kernel ? CUDA_OK : CUDA_INVALID_FUNCTION);
}

PH_API(int, cudaGetKernel, (void **kernel, const void *host_function))
{
    return __cudaGetKernel(kernel, host_function);
}

PH_API(int, cudaLaunchKernel,
       (const void *function, struct ph_dim3 grid, struct ph_dim3 block, void **arguments,
        size_t shared, void *stream))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return ph_set_error(CUDA_INVALID_FUNCTION);
    return ph_set_error(
        ph_launch(kernel, &(struct ph_launch){grid, block, {0, 0, 0}, shared, stream}, arguments));
}
PH_API(int, __cudaLaunchKernel,
       (void *kernel, struct ph_dim3 grid, struct ph_dim3 block, void **arguments, size_t shared,
        void *stream))
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
PH_API(int, cudaLaunchCooperativeKernel,
       (const void *function, struct ph_dim3 grid, struct ph_dim3 block, void **arguments,
        size_t shared, void *stream))
{
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

PH_API(int, cudaLaunchKernelExC,
       (const struct ph_runtime_launch *config, const void *function, void **arguments))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return ph_set_error(CUDA_INVALID_FUNCTION);
    PH_TRACE(ph_trace_api("cudaLaunchKernelExC"));
    struct ph_launch launch = ph_launch_of_runtime(config);
    return ph_set_error(ph_launch(kernel, &launch, arguments));
}

/* <<<...>>> pushes its configuration and the kernel's stub pops it. Nested launches of one thread
 * are rare; a depth of 16 is enough. */
static _Thread_local struct {
    struct ph_dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[16];
static _Thread_local int depth;

PH_API(unsigned, __cudaPushCallConfiguration,
       (struct ph_dim3 grid, struct ph_dim3 block, size_t shared, void *stream))
{
    if (depth >= 16) return 1;
    pushed[depth].grid = grid, pushed[depth].block = block, pushed[depth].shared = shared,
    pushed[depth].stream = stream;
    depth++;
    return 0;
}
PH_API(int, __cudaPopCallConfiguration,
       (struct ph_dim3 * grid, struct ph_dim3 *block, size_t *shared, void *stream))
{
    if (depth == 0) return CUDA_INVALID_VALUE;
    depth--;
    *grid = pushed[depth].grid, *block = pushed[depth].block, *shared = pushed[depth].shared;
    *(void **)stream = pushed[depth].stream;
    return CUDA_OK;
}
