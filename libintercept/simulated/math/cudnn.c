/* cudnn.c - cuDNN's handles, versions and error texts.
 *
 * Why it exists: the graph API (cudnn_backend.c) and the older one (cudnn_legacy.c) share them. A
 * handle only holds its stream. */
#define PH_CLASS PH_SIMULATED
#define _GNU_SOURCE
#include "base/fork.h"
#include "simulated/math/cudnn.h"
#include "simulated/math/library_handle.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x63646e68 };

/* The release in torch 2.11's wheels. Used only when the job has not loaded a cuDNN library. */
enum { RELEASE = 91900, CUDART_RELEASE = 13010, LATEST_DEVICE = 1210 };

static _Thread_local char last_error[512];

int ph_cudnn_fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

#undef PH_CLASS
#define PH_CLASS PH_PASSED
/* ---- versions and texts: NVIDIA's library answers if it is loaded; it needs no GPU for this ----
 */

/* A function of NVIDIA's library; NULL when the job has not loaded it. The library stays loaded. */
static void *loaded_function(const char *name)
{
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;
    if (library) dlclose(library);
    return function;
}

static size_t ask_number(const char *name, size_t otherwise)
{
    size_t (*function)(void) = (size_t (*)(void))loaded_function(name);
    return function ? function() : otherwise;
}

PH_API(size_t, cudnnGetVersion, (void)) { return ask_number("cudnnGetVersion", RELEASE); }

size_t ph_cudnn_release_number(void)
{
    static atomic_size_t found; /* every attribute is checked against it */
    size_t release = atomic_load_explicit(&found, memory_order_relaxed);
    if (release == 0) {
        release = ask_number("cudnnGetVersion", 0);
        atomic_store_explicit(&found, release, memory_order_relaxed);
    }
    return release != 0 ? release : RELEASE;
}

PH_API(size_t, cudnnGetCudartVersion, (void))
{
    return ask_number("cudnnGetCudartVersion", CUDART_RELEASE);
}

PH_API(size_t, cudnnGetMaxDeviceVersion, (void))
{
    return ask_number("cudnnGetMaxDeviceVersion", LATEST_DEVICE);
}

PH_API(int, cudnnGetProperty, (int type, int *value))
{
    size_t release = cudnnGetVersion();
    if (value == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnGetProperty: no place for the value");
    switch (type) { /* libraryPropertyType (library_types.h) */
    case 0: *value = (int)(release / 10000); return CUDNN_SUCCESS;
    case 1: *value = (int)(release / 100 % 100); return CUDNN_SUCCESS;
    case 2: *value = (int)(release % 100); return CUDNN_SUCCESS;
    default:
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "cudnnGetProperty: there is no property %d", type);
    }
}

PH_API(const char *, cudnnGetErrorString, (int status))
{
    const char *(*function)(int) = (const char *(*)(int))loaded_function("cudnnGetErrorString");
    const char *text = function ? function(status) : NULL;
    if (text != NULL) return text;
    switch (status) {
    case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_NULL_POINTER: return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case CUDNN_ATTRIBUTE_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_HOST_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    default: return "CUDNN_UNKNOWN_STATUS";
    }
}

PH_API(void, cudnnGetLastErrorString, (char *message, size_t size))
{
    if (message == NULL || size == 0) return;
    snprintf(message, size, "%s", last_error);
    last_error[0] = '\0';
}

#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
/* ---- handles ---- */

PH_API(int, cudnnCreate, (struct ph_library_handle **handle))
{
    if (handle == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnCreate: no place for the handle");
    if (ph_forked())
        return ph_cudnn_fail(CUDNN_NOT_INITIALIZED, "cudnnCreate: the parent had used CUDA");
    *handle = ph_library_handle_new(MAGIC);
    return *handle ? CUDNN_SUCCESS : CUDNN_HOST_ALLOCATION_FAILED;
}

PH_API(int, cudnnDestroy, (struct ph_library_handle *handle))
{
    if (!ph_library_handle(handle, MAGIC))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnDestroy: not a handle");
    ph_library_handle_free(handle);
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnSetStream, (struct ph_library_handle *handle, void *stream))
{
    if (!ph_library_handle(handle, MAGIC))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnSetStream: not a handle");
    handle->stream = stream;
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnGetStream, (struct ph_library_handle *handle, void **stream))
{
    if (!ph_library_handle(handle, MAGIC) || stream == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnGetStream: not a handle");
    *stream = handle->stream;
    return CUDNN_SUCCESS;
}

void *ph_cudnn_stream(const void *pointer, bool *valid)
{
    const struct ph_library_handle *handle = ph_library_handle(pointer, MAGIC);
    *valid = handle != NULL;
    return handle ? handle->stream : NULL;
}
