/* library.c - the driver's context-independent loading: CUlibrary and CUkernel.
 *
 * Why it exists: cuDNN loads what it has compiled for a graph this way, even when it only plans for
 * a described GPU. Our modules belong to no context, so a library is a module and a kernel is its
 * function (module.c). */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"

enum { SUCCESS = 0, INVALID_VALUE = 1 };

int cuModuleLoadData(void **module, const void *image);
int cuModuleLoad(void **module, const char *path);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuFuncGetAttribute(int *value, int attribute, void *function);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuFuncSetCacheConfig(void *function, int config);

/* The options are about how to compile PTX and about host pointers of the caller: they change no
 * answer of ours. */
PH_EXPORT int cuLibraryLoadData(void **library, const void *code, const int *jit_options,
                                void **jit_values, unsigned jit_count, const int *options,
                                void **values, unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoadData(library, code);
}

PH_EXPORT int cuLibraryLoadFromFile(void **library, const char *path, const int *jit_options,
                                    void **jit_values, unsigned jit_count, const int *options,
                                    void **values, unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoad(library, path);
}

PH_EXPORT int cuLibraryUnload(void *library) { return cuModuleUnload(library); }

PH_EXPORT int cuLibraryGetModule(void **module, void *library)
{
    if (module == NULL || library == NULL) return INVALID_VALUE;
    *module = library;
    return SUCCESS;
}

PH_EXPORT int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    return cuModuleGetFunction(kernel, library, name);
}

PH_EXPORT int cuKernelGetFunction(void **function, void *kernel)
{
    if (function == NULL || kernel == NULL) return INVALID_VALUE;
    *function = kernel;
    return SUCCESS;
}

PH_EXPORT int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    (void)device; /* a node's GPUs are of one model */
    return cuFuncGetAttribute(value, attribute, kernel);
}

PH_EXPORT int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    (void)device;
    return cuFuncSetAttribute(kernel, attribute, value);
}

#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_EXPORT int cuKernelSetCacheConfig(void *kernel, int config, int device)
{
    (void)device;
    return cuFuncSetCacheConfig(kernel, config);
}
