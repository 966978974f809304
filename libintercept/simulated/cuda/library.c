/* library.c - the driver's context-independent loading: CUlibrary and CUkernel.
 *
 * Why it exists: cuDNN loads the code that it has compiled for a graph this way, even when it only
 * plans for a described GPU. Our modules belong to no context, so a library is a module and a
 * kernel is its function (module.c). */
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

/* The options concern PTX compilation and host pointers of the caller. They change none of our
 * answers. */
PH_API(int, cuLibraryLoadData,
       (void **library, const void *code, const int *jit_options, void **jit_values,
        unsigned jit_count, const int *options, void **values, unsigned count))
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoadData(library, code);
}

PH_API(int, cuLibraryLoadFromFile,
       (void **library, const char *path, const int *jit_options, void **jit_values,
        unsigned jit_count, const int *options, void **values, unsigned count))
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return cuModuleLoad(library, path);
}

PH_API(int, cuLibraryUnload, (void *library)) { return cuModuleUnload(library); }

PH_API(int, cuLibraryGetModule, (void **module, void *library))
{
    if (module == NULL || library == NULL) return INVALID_VALUE;
    *module = library;
    return SUCCESS;
}

PH_API(int, cuLibraryGetKernel, (void **kernel, void *library, const char *name))
{
    return cuModuleGetFunction(kernel, library, name);
}

PH_API(int, cuKernelGetFunction, (void **function, void *kernel))
{
    if (function == NULL || kernel == NULL) return INVALID_VALUE;
    *function = kernel;
    return SUCCESS;
}

PH_API(int, cuKernelGetAttribute, (int *value, int attribute, void *kernel, int device))
{
    (void)device; /* all GPUs of a node are of one model */
    return cuFuncGetAttribute(value, attribute, kernel);
}

PH_API(int, cuKernelSetAttribute, (int attribute, int value, void *kernel, int device))
{
    (void)device;
    return cuFuncSetAttribute(kernel, attribute, value);
}

#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cuKernelSetCacheConfig, (void *kernel, int config, int device))
{
    (void)device;
    return cuFuncSetCacheConfig(kernel, config);
}
