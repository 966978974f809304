/* module.c - code loaded at run time: cubins of Triton and NVRTC, and the driver's launch calls.
 *
 * Why it exists: these kernels are in no library that could be read beforehand. A cubin is an ELF
 * file; its .nv.info sections describe parameters and registers, and are read when it is loaded. In
 * them, attribute 0x17 is a parameter (0x45 in a kernel with more than 4 KiB of them), 0x19 the
 * parameters' total size, 0x05 the maximum number of threads, and 0x2f the registers of a symbol.
 */
#define PH_CLASS PH_SIMULATED
#include "base/device.h"
#include "base/fork.h"
#include "base/log.h"
#include "trace/trace_log.h"
#include "time/host_clock.h"
#include "simulated/cuda/kernels.h"
#include "work/accesses.h"
#include "work/cubin.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MODULE_MAGIC = 0x50484d44,
    PARAM = 0x17,
    PARAM_V2 = 0x45,
    MAX_THREADS = 0x05,
    REGISTERS = 0x2f,
    SIZED = 4
};

struct function {
    struct ph_kernel *kernel;
    char *name;
    struct ph_kernel_facts facts;
    struct ph_kernel_param *params;
    struct function *next;
};
struct module {
    uint32_t magic;
    struct function *functions;
    bool opaque; /* not a cubin: its functions are known by name only */
};

static int by_offset(const void *a, const void *b)
{
    return (int)((const struct ph_kernel_param *)a)->offset -
           (int)((const struct ph_kernel_param *)b)->offset;
}

static uint32_t u32(const unsigned char *at)
{
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}
static uint16_t u16(const unsigned char *at) { return (uint16_t)(at[0] | at[1] << 8); }

static void read_info(const struct ph_cubin *image, const Elf64_Shdr *section,
                      struct function *function)
{
    const unsigned char *at = ph_cubin_contents(image, section);
    if (!at || function->facts.known) return; /* the first of two that name one kernel */
    const unsigned char *end = at + section->sh_size;
    function->params = calloc(section->sh_size / 16 + 1, sizeof *function->params);
    if (!function->params) ph_die("out of host memory");
    while (end - at >= 4) {
        unsigned format = at[0], attribute = at[1], value = u16(at + 2);
        at += 4;
        if (format != SIZED) continue;
        if (value > end - at) break;
        if ((attribute == PARAM || attribute == PARAM_V2) && value >= 12) {
            uint32_t size = attribute == PARAM ? u32(at + 8) >> 18 : u32(at + 8);
            function->params[function->facts.param_count++] =
                (struct ph_kernel_param){u16(at + 6), (uint16_t)size};
        }
        if (attribute == MAX_THREADS && value >= 12)
            function->facts.max_threads = u32(at) * u32(at + 4) * u32(at + 8);
        at += value;
    }
    /* Arguments come in the order of the parameters, which is that of their offsets. */
    qsort(function->params, function->facts.param_count, sizeof *function->params, by_offset);
    function->facts.params = function->params;
    function->facts.known = true;
}

static struct function *find(struct module *module, const char *name)
{
    for (struct function *function = module->functions; function; function = function->next)
        if (strcmp(function->name, name) == 0) return function;
    return NULL;
}

static struct function *add(struct module *module, const char *name)
{
    struct function *function = find(module, name);
    if (function) return function;
    function = calloc(1, sizeof *function);
    if (!function) ph_die("out of host memory");
    function->name = strdup(name);
    function->kernel = ph_kernel_make(name);
    function->next = module->functions;
    return module->functions = function;
}

static Elf64_Shdr symbol_table(const struct ph_cubin *image)
{
    for (unsigned i = 0; i < image->header.e_shnum; i++) {
        Elf64_Shdr section = ph_cubin_section(image, i);
        if (section.sh_type == SHT_SYMTAB) return section;
    }
    return (Elf64_Shdr){0};
}

static void read_registers(const struct ph_cubin *image, const Elf64_Shdr *info,
                           struct module *module)
{
    Elf64_Shdr symbols = symbol_table(image);
    const unsigned char *table = ph_cubin_contents(image, &symbols),
                        *at = ph_cubin_contents(image, info);
    if (!table || !at) return;
    const unsigned char *end = at + info->sh_size;
    while (end - at >= 4) {
        unsigned format = at[0], attribute = at[1], value = u16(at + 2);
        at += 4;
        if (format != SIZED) continue;
        if (value > end - at) return;
        if (attribute == REGISTERS && value >= 8 && u32(at) < symbols.sh_size / sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, table + (size_t)u32(at) * sizeof symbol, sizeof symbol);
            struct function *function =
                find(module, ph_cubin_text(image, symbols.sh_link, symbol.st_name));
            if (function) function->facts.registers = u32(at + 4);
        }
        at += value;
    }
}

static struct module *load(const void *data, size_t bytes)
{
    static const char info[] = ".nv.info.", shared[] = ".nv.shared.";
    struct ph_cubin image;
    struct module *module = calloc(1, sizeof *module);
    if (!module) ph_die("out of host memory");
    module->magic = MODULE_MAGIC;
    module->opaque = !ph_cubin_open(&image, data, bytes);
    for (unsigned i = 0; !module->opaque && i < image.header.e_shnum; i++) {
        Elf64_Shdr section = ph_cubin_section(&image, i);
        const char *name = ph_cubin_text(&image, image.header.e_shstrndx, section.sh_name);
        const char *code_of = ph_cubin_code_of(&image, &section);
        if (code_of)
            add(module, code_of)->facts.accesses = ph_accesses_of(&image, &section);
        else if (!strncmp(name, info, sizeof info - 1))
            read_info(&image, &section, add(module, name + sizeof info - 1));
        else if (!strncmp(name, shared, sizeof shared - 1))
            add(module, name + sizeof shared - 1)->facts.static_shared = (unsigned)section.sh_size;
    }
    for (unsigned i = 0; !module->opaque && i < image.header.e_shnum; i++) {
        Elf64_Shdr section = ph_cubin_section(&image, i);
        if (!strcmp(ph_cubin_text(&image, image.header.e_shstrndx, section.sh_name), ".nv.info"))
            read_registers(&image, &section, module);
    }
    for (struct function *function = module->functions; function; function = function->next)
        ph_kernel_set_facts(function->kernel, &function->facts);
    return module;
}

/* Its kernels stay, with their parameters: a launch may still refer to them. */
static void unload(struct module *module)
{
    module->magic = 0;
    for (struct function *function = module->functions, *next; function; function = next) {
        next = function->next;
        free(function->name);
        free(function);
    }
    free(module);
}

PH_API(int, cuModuleLoadData, (void **module, const void *image))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    if (!module || !image) return CUDA_INVALID_VALUE;
    ph_host_call(PH_CALL_MALLOC);
    *module = load(image, ph_cubin_extent(image));
    return CUDA_OK;
}
PH_API(int, cuModuleLoadDataEx,
       (void **module, const void *image, unsigned count, int *options, void **values))
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

PH_API(int, cuModuleLoad, (void **module, const char *path))
{
    if (ph_forked()) return CUDA_NOT_INITIALIZED;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        if (fd >= 0) close(fd);
        return CUDA_FILE_NOT_FOUND;
    }
    unsigned char *data = malloc((size_t)status.st_size + 1);
    if (!data) ph_die("out of host memory");
    ssize_t got = read(fd, data, (size_t)status.st_size);
    close(fd);
    ph_host_call(PH_CALL_MALLOC);
    if (got == status.st_size) *module = load(data, (size_t)got);
    free(data);
    return got == status.st_size ? CUDA_OK : CUDA_INVALID_IMAGE;
}

PH_API(int, cuModuleUnload, (void *handle))
{
    struct module *module = handle;
    if (!module || module->magic != MODULE_MAGIC) return CUDA_INVALID_HANDLE;
    unload(module);
    return CUDA_OK;
}

PH_API(int, cuModuleGetFunction, (void **function, void *handle, const char *name))
{
    struct module *module = handle;
    if (!module || module->magic != MODULE_MAGIC) return CUDA_INVALID_HANDLE;
    struct function *found = find(module, name);
    if (!found && module->opaque) {
        ph_warn("a module that is not a cubin was loaded: nothing is known of the code of its "
                "kernel %s",
                name);
        found = add(module, name);
    }
    if (!found) return CUDA_NOT_FOUND;
    *function = found->kernel;
    return CUDA_OK;
}

PH_API(int, cuFuncGetAttribute, (int *value, int attribute, void *function))
{
    enum {
        THREADS = 0,
        SHARED = 1,
        CONSTANT = 2,
        LOCAL = 3,
        NUM_REGS = 4,
        PTX = 5,
        BINARY = 6,
        CACHE = 7,
        MAX_DYNAMIC = 8,
        CARVEOUT = 9
    };
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return CUDA_INVALID_HANDLE;
    const struct ph_kernel_facts *facts = ph_kernel_facts(kernel);
    int version = ph_spec()->compute_major * 10 + ph_spec()->compute_minor;
    switch (attribute) {
    case THREADS: *value = facts->max_threads ? (int)facts->max_threads : 1024; return CUDA_OK;
    case SHARED: *value = (int)facts->static_shared; return CUDA_OK;
    case CONSTANT: *value = 0; return CUDA_OK;
    case LOCAL: *value = (int)facts->local_bytes; return CUDA_OK;
    case NUM_REGS: *value = facts->known ? (int)facts->registers : 32; return CUDA_OK;
    case PTX:
    case BINARY: *value = version; return CUDA_OK;
    case CACHE: *value = 0; return CUDA_OK;
    case MAX_DYNAMIC: *value = 49152 - (int)facts->static_shared; return CUDA_OK;
    case CARVEOUT: *value = -1; return CUDA_OK;
    default: ph_unsupported("cuFuncGetAttribute (this attribute)"); return CUDA_NOT_SUPPORTED;
    }
}
PH_API(int, cuFuncGetName, (const char **name, void *function))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel || !name) return kernel ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    *name = ph_kernel_name(kernel);
    return CUDA_OK;
}
PH_API(int, cuFuncGetParamInfo, (void *function, size_t index, size_t *offset, size_t *bytes))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return CUDA_INVALID_HANDLE;
    const struct ph_kernel_facts *facts = ph_kernel_facts(kernel);
    if (index >= facts->param_count || !offset) return CUDA_INVALID_VALUE;
    *offset = facts->params[index].offset;
    if (bytes) *bytes = facts->params[index].size;
    return CUDA_OK;
}
PH_API(int, cuFuncSetAttribute, (void *function, int attribute, int value))
{
    (void)attribute, (void)value; /* shared memory is taken from each launch */
    return ph_kernel_resolve(function) ? CUDA_OK : CUDA_INVALID_HANDLE;
}
#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cuFuncSetCacheConfig, (void *function, int config))
{
    (void)config;
    return ph_kernel_resolve(function) ? CUDA_OK : CUDA_INVALID_HANDLE;
}
#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
PH_API(int, cuOccupancyMaxActiveBlocksPerMultiprocessor,
       (int *blocks, void *function, int block, size_t shared))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    if (!kernel) return CUDA_INVALID_HANDLE;
    *blocks = ph_occupancy(kernel, block, shared);
    return CUDA_OK;
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
/* ---- launches; `extra` (a packed parameter buffer) has no layout, so such a launch is described
 * by its dimensions ---- */
PH_API(int, cuLaunchKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
        unsigned bz, unsigned shared, void *stream, void **arguments, void **extra))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    (void)extra;
    if (!kernel) return CUDA_INVALID_HANDLE;
    PH_TRACE(ph_trace_api("cuLaunchKernel"));
    return ph_launch(kernel,
                     &(struct ph_launch){{gx, gy, gz}, {bx, by, bz}, {0, 0, 0}, shared, stream},
                     arguments);
}
PH_API(int, cuLaunchCooperativeKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
        unsigned bz, unsigned shared, void *stream, void **arguments))
{
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, NULL);
}

PH_API(int, cuLaunchKernelEx,
       (const struct ph_driver_launch *config, void *function, void **arguments, void **extra))
{
    struct ph_kernel *kernel = ph_kernel_resolve(function);
    (void)extra;
    if (!kernel) return CUDA_INVALID_HANDLE;
    struct ph_launch launch = ph_launch_of_driver(config);
    PH_TRACE(ph_trace_api("cuLaunchKernelEx"));
    return ph_launch(kernel, &launch, arguments);
}
