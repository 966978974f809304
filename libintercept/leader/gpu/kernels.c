/* kernels.c - launches of the job's own kernels, observed on their way to the GPU.
 *
 * Why it exists: a launch must be measured under the signature for which a simulated rank asks
 * (work/signature.c). So the kernel's mangled name and parameter layout must be found for every
 * kind of handle: host functions that static initialisers register, the runtime's kernel handles,
 * and the driver's functions. */
#include "base/log.h"
#include "work/signature.h"
#include "leader/gpu/map.h"
#include "leader/gpu/modules.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARAMETERS = 1024 };

struct ph_kernel {
    const char *name; /* mangled */
    _Atomic bool facts_read;
    struct ph_kernel_facts facts;
};

static struct ph_map registered = PH_MAP_INIT; /* by host function */
/* by the runtime's handle for a registered kernel (cudaKernel_t) */
static struct ph_map runtime = PH_MAP_INIT;
static struct ph_map handles = PH_MAP_INIT; /* by CUfunction or CUkernel of loaded code */

static struct ph_kernel *kernel_make(const char *name)
{
    struct ph_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) ph_die("out of host memory");
    kernel->name = name;
    return kernel;
}

PH_API(void, __cudaRegisterFunction,
       (void **handle, const char *host_function, char *device_function, const char *device_name,
        int thread_limit, void *tid, void *bid, void *block, void *grid, int *warp_size))
{
    /* the name is in the library's read-only data */
    ph_map_put(&registered, host_function, kernel_make(device_name));
    PH_REAL(__cudaRegisterFunction)(handle, host_function, device_function, device_name,
                                    thread_limit, tid, bid, block, grid, warp_size);
}

/* ---- from a handle to its kernel ---- */
/* not wrapped; declared for their types */
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes);
int cuFuncGetName(const char **name, void *function);

/* A loaded function's parameters come from its own code, as a simulated rank reads them from the
 * cubin. A registered one's come from the kernel info file. */
static void read_function(struct ph_kernel *kernel, void *function)
{
    __typeof__(&cuFuncGetParamInfo) info =
        (__typeof__(&cuFuncGetParamInfo))ph_real_maybe("cuFuncGetParamInfo");
    struct ph_kernel_param params[MOST_PARAMETERS];
    unsigned count = 0;
    size_t offset, bytes;
    if (!info) {
        ph_warn("this driver has no cuFuncGetParamInfo (CUDA 12.4 or later has): kernels compiled "
                "at run time are told apart by their dimensions only");
        return;
    }
    while (count < MOST_PARAMETERS && info(function, count, &offset, &bytes) == CUDA_OK)
        params[count++] = (struct ph_kernel_param){(uint16_t)offset, (uint16_t)bytes};
    struct ph_kernel_param *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy) ph_die("out of host memory");
    memcpy(copy, params, count * sizeof *copy);
    kernel->facts = (struct ph_kernel_facts){.known = true,
                                             .param_count = count,
                                             .params = copy,
                                             .accesses = ph_lead_accesses(function, kernel->name)};
    atomic_store_explicit(&kernel->facts_read, true, memory_order_release);
}

static struct ph_kernel_facts *facts_of(struct ph_kernel *kernel)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    if (!atomic_load_explicit(&kernel->facts_read, memory_order_acquire)) {
        pthread_mutex_lock(&once);
        const struct ph_kernel_info *info = ph_kernel_info(kernel->name);
        if (info)
            kernel->facts = (struct ph_kernel_facts){
                .known = true, .param_count = info->param_count, .params = ph_kernel_params(info)};
        atomic_store_explicit(&kernel->facts_read, true, memory_order_release);
        pthread_mutex_unlock(&once);
    }
    return &kernel->facts;
}

static __typeof__(&cuFuncGetName) function_name, kernel_name; /* set by find_names, once */

static void find_names(void)
{
    function_name = (__typeof__(&cuFuncGetName))ph_real_maybe("cuFuncGetName");
    kernel_name = (__typeof__(&cuFuncGetName))ph_real_maybe("cuKernelGetName");
    if (!function_name)
        ph_die("this driver cannot give the names of kernels (cuFuncGetName): it is older than "
               "CUDA 12.3; a newer one is needed to lead");
}

static struct ph_kernel *loaded(void *handle)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *name = NULL;
    struct ph_kernel *kernel = ph_map_get(&handles, handle), *other;
    if (kernel) return kernel;
    pthread_once(&once, find_names);
    bool is_function = function_name(&name, handle) == CUDA_OK && name;
    if (!is_function && (!kernel_name || kernel_name(&name, handle) != CUDA_OK || !name)) {
        ph_warn("the driver does not give the name of a kernel that was launched: it is not "
                "observed and its time counts as nothing");
        return NULL;
    }
    kernel = kernel_make(strdup(name));
    if (is_function) read_function(kernel, handle);
    other = ph_map_add(&handles, handle, kernel);
    return other ? other : kernel;
}

static struct ph_kernel *resolve(const void *handle)
{
    struct ph_kernel *kernel = ph_map_get(&registered, handle);
    if (!kernel) kernel = ph_map_get(&runtime, handle);
    return kernel ? kernel : loaded((void *)handle);
}

PH_API(int, __cudaGetKernel, (void **kernel, const void *host_function))
{
    int error = PH_REAL(__cudaGetKernel)(kernel, host_function);
    struct ph_kernel *ours = ph_map_get(&registered, host_function);
    if (!error && ours) ph_map_put(&runtime, *kernel, ours);
    return error;
}
PH_API(int, cudaGetKernel, (void **kernel, const void *host_function))
{
    int error = PH_REAL(cudaGetKernel)(kernel, host_function);
    struct ph_kernel *ours = ph_map_get(&registered, host_function);
    if (!error && ours) ph_map_put(&runtime, *kernel, ours);
    return error;
}

void ph_lead_forget_loaded(void) { ph_map_clear(&handles); }

/* ---- launching ---- */
static _Thread_local struct ph_signature signature;

/* Time spent here is ours: the host time recorded at a call site must not include it. */
static bool describe(struct ph_kernel *kernel, const struct ph_launch *launch, void **arguments)
{
    if (kernel) ph_launch_signature(&signature, kernel->name, facts_of(kernel), launch, arguments);
    ph_host_resume();
    return kernel != NULL;
}

static bool outermost(void)
{
    if (ph_lead_inside()) return false;
    ph_host_pause();
    return true;
}

static void after(uint64_t token, int error)
{
    if (error)
        ph_lead_cancel(token);
    else
        ph_lead_end(token);
}

/* `call` runs the kernel `which` as `...` (a struct ph_launch) describes; `handle_of` finds the
 * kernel. The value is that of the real call. */
#define OBSERVED(handle_of, which, arguments, call, ...)                                         \
    (__extension__({                                                                             \
        const struct ph_launch launch_ = __VA_ARGS__;                                            \
        bool seen_ =                                                                             \
            outermost() && describe(ph_lead_capturing(launch_.stream) ? NULL : handle_of(which), \
                                    &launch_, (arguments));                                      \
        uint64_t token_ = seen_ ? ph_lead_begin(launch_.stream, &signature) : 0;                 \
        int error_ = PH_REAL_TIMED(PH_CALL_LAUNCH, call);                                        \
        if (seen_) after(token_, error_);                                                        \
        error_;                                                                                  \
    }))

PH_API(int, cudaLaunchKernel,
       (const void *function, struct ph_dim3 grid, struct ph_dim3 block, void **arguments,
        size_t shared, void *stream))
{
    return OBSERVED(resolve, function, arguments,
                    PH_REAL(cudaLaunchKernel)(function, grid, block, arguments, shared, stream),
                    {grid, block, {0, 0, 0}, shared, stream});
}
PH_API(int, __cudaLaunchKernel,
       (void *kernel, struct ph_dim3 grid, struct ph_dim3 block, void **arguments, size_t shared,
        void *stream))
{
    return OBSERVED(resolve, kernel, arguments,
                    PH_REAL(__cudaLaunchKernel)(kernel, grid, block, arguments, shared, stream),
                    {grid, block, {0, 0, 0}, shared, stream});
}
PH_API(int, cudaLaunchCooperativeKernel,
       (const void *function, struct ph_dim3 grid, struct ph_dim3 block, void **arguments,
        size_t shared, void *stream))
{
    return OBSERVED(
        resolve, function, arguments,
        PH_REAL(cudaLaunchCooperativeKernel)(function, grid, block, arguments, shared, stream),
        {grid, block, {0, 0, 0}, shared, stream});
}

PH_API(int, cudaLaunchKernelExC,
       (const struct ph_runtime_launch *config, const void *function, void **arguments))
{
    return OBSERVED(resolve, function, arguments,
                    PH_REAL(cudaLaunchKernelExC)(config, function, arguments),
                    ph_launch_of_runtime(config));
}

PH_API(int, cuLaunchKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
        unsigned bz, unsigned shared, void *stream, void **arguments, void **extra))
{
    return OBSERVED(
        loaded, function, arguments,
        PH_REAL(cuLaunchKernel)(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra),
        {{gx, gy, gz}, {bx, by, bz}, {0, 0, 0}, shared, stream});
}
PH_API(int, cuLaunchCooperativeKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
        unsigned bz, unsigned shared, void *stream, void **arguments))
{
    return OBSERVED(loaded, function, arguments,
                    PH_REAL(cuLaunchCooperativeKernel)(function, gx, gy, gz, bx, by, bz, shared,
                                                       stream, arguments),
                    {{gx, gy, gz}, {bx, by, bz}, {0, 0, 0}, shared, stream});
}

PH_API(int, cuLaunchKernelEx,
       (const struct ph_driver_launch *config, void *function, void **arguments, void **extra))
{
    return OBSERVED(loaded, function, arguments,
                    PH_REAL(cuLaunchKernelEx)(config, function, arguments, extra),
                    ph_launch_of_driver(config));
}
