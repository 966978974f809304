/* cudnn.c - cuDNN's handles, versions and error texts.
 *
 * Why it exists: the graph API (cudnn_backend.c) and the older one (cudnn_legacy.c) share them. A
 * handle is no more than the stream that it was given. */
#define PH_CLASS PH_SIMULATED
#define _GNU_SOURCE
#include "simulated/math/cudnn.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct handle {
    uint32_t magic;
    void *stream;
};
enum { MAGIC = 0x63646e68 };

/* The release in torch 2.11's wheels; used only when the job has no cuDNN library loaded. */
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
/* ---- versions and texts: facts of NVIDIA's library that need no GPU, so it is asked where it is
 * loaded ---- */

static size_t ask_number(const char *name, size_t otherwise)
{
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    size_t (*function)(void) = library != NULL ? (size_t (*)(void))dlsym(library, name) : NULL;
    size_t number = function != NULL ? function() : otherwise;
    if (library != NULL) dlclose(library);
    return number;
}

PH_EXPORT size_t cudnnGetVersion(void) { return ask_number("cudnnGetVersion", RELEASE); }

PH_EXPORT size_t cudnnGetCudartVersion(void)
{
    return ask_number("cudnnGetCudartVersion", CUDART_RELEASE);
}

PH_EXPORT size_t cudnnGetMaxDeviceVersion(void)
{
    return ask_number("cudnnGetMaxDeviceVersion", LATEST_DEVICE);
}

PH_EXPORT int cudnnGetProperty(int type, int *value)
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

PH_EXPORT const char *cudnnGetErrorString(int status)
{
    /* it stays loaded: so does the text */
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    const char *(*function)(int) =
        library != NULL ? (const char *(*)(int))dlsym(library, "cudnnGetErrorString") : NULL;
    const char *text = function != NULL ? function(status) : NULL;
    if (library != NULL) dlclose(library);
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

PH_EXPORT void cudnnGetLastErrorString(char *message, size_t size)
{
    if (message == NULL || size == 0) return;
    snprintf(message, size, "%s", last_error);
    last_error[0] = '\0';
}

#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
/* ---- handles ---- */

PH_EXPORT int cudnnCreate(struct handle **handle)
{
    if (handle == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnCreate: no place for the handle");
    struct handle *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDNN_HOST_ALLOCATION_FAILED;
    made->magic = MAGIC;
    *handle = made;
    return CUDNN_SUCCESS;
}

PH_EXPORT int cudnnDestroy(struct handle *handle)
{
    if (handle == NULL || handle->magic != MAGIC)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnDestroy: not a handle");
    handle->magic = 0;
    free(handle);
    return CUDNN_SUCCESS;
}

PH_EXPORT int cudnnSetStream(struct handle *handle, void *stream)
{
    if (handle == NULL || handle->magic != MAGIC)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnSetStream: not a handle");
    handle->stream = stream;
    return CUDNN_SUCCESS;
}

PH_EXPORT int cudnnGetStream(struct handle *handle, void **stream)
{
    if (handle == NULL || handle->magic != MAGIC || stream == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnGetStream: not a handle");
    *stream = handle->stream;
    return CUDNN_SUCCESS;
}

void *ph_cudnn_stream(const void *pointer, bool *valid)
{
    const struct handle *handle = pointer;
    *valid = handle != NULL && handle->magic == MAGIC;
    return *valid ? handle->stream : NULL;
}
