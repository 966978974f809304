/* cudnn_real.c - asks NVIDIA's cuDNN what it would do on the simulated GPU.
 *
 * Why it exists: the engines that fit a graph, their order, their numerical notes and above all
 * their workspace in bytes are cuDNN's own unpublished decisions, and PyTorch allocates that
 * workspace. Since release 9.8 the library answers for a GPU that is only described to it
 * (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, meant for ahead-of-time compilation), so neither a driver
 * nor a GPU nor a copy of its tables is needed. The job has loaded the library already. Our
 * descriptors get a twin in it when needed. Rule: nothing here executes anything, and handles never
 * reach NVIDIA's library. */
#define _GNU_SOURCE
#include "base/device.h"
#include "base/log.h"
#include "simulated/math/cudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_RELEASE = 90800 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool available;
static void *device_description;

static struct {
    size_t (*version)(void);
    void (*last_error)(char *, size_t);
    int (*create)(int, void **);
    int (*destroy)(void *);
    int (*set)(void *, int, int, int64_t, const void *);
    int (*get)(void *, int, int, int64_t, int64_t *, void *);
    int (*finalize)(void *);
} real;

static int attribute(int name)
{
    int value = 0;
    if (!ph_device_attribute(PH_ANY_DEVICE, name, &value))
        ph_warn("the data of this GPU model has no attribute %d, which cuDNN asks for; its choices "
                "may differ",
                name);
    return value;
}

/* The JSON that NVIDIA's library writes for a GPU (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
 * release 9.19), from CUdevice_attributes. */
static int describe_device(char *text, size_t size)
{
    const struct ph_device_spec *gpu = ph_spec();
    return snprintf(text, size,
                    "{\"deviceName\": \"%s\", \"deviceVer\": %d, \"driverVer\": 13000, "
                    "\"maxGridSize\": [%d, %d, %d], "
                    "\"maxBlockSize\": [%d, %d, %d], \"regsPerBlock\": %d, "
                    "\"multiProcessorCount\": %d, \"smClockRateKHz\": %d, "
                    "\"memClockRateKHz\": %d, \"l2CacheSize\": %d, \"warpSize\": %d, "
                    "\"maxSharedMemoryPerBlock\": %d, "
                    "\"maxSharedMemoryPerBlockOptin\": %d, \"reservedSharedMemoryPerBlock\": %d, "
                    "\"maxRegistersPerSM\": %d, "
                    "\"pciDeviceId\": %d, \"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": %d, "
                    "\"maxThreadsPerSM\": %d, "
                    "\"isTccDriver\": %d, \"supportCoopLaunch\": %d, \"totalGlobalMem\": %llu, "
                    "\"cudaDeviceId\": 0}",
                    gpu->name, 100 * gpu->compute_major + 10 * gpu->compute_minor, attribute(5),
                    attribute(6), attribute(7), attribute(2), attribute(3), attribute(4),
                    attribute(12), gpu->multiprocessors, attribute(13), attribute(36),
                    attribute(38), attribute(10), attribute(8), attribute(97), attribute(111),
                    attribute(82), attribute(34), attribute(106), attribute(1), attribute(39),
                    attribute(35), attribute(95), (unsigned long long)gpu->memory_bytes);
}

static bool load(void)
{
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) /* a job that found our symbols by name */
        library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) return false;
    real.version = dlsym(library, "cudnnGetVersion");
    real.last_error = dlsym(library, "cudnnGetLastErrorString");
    real.create = dlsym(library, "cudnnBackendCreateDescriptor");
    real.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    real.set = dlsym(library, "cudnnBackendSetAttribute");
    real.get = dlsym(library, "cudnnBackendGetAttribute");
    real.finalize = dlsym(library, "cudnnBackendFinalize");
    return real.version && real.last_error && real.create && real.destroy && real.set && real.get &&
           real.finalize && real.version() >= FIRST_RELEASE;
}

static void prepare(void)
{
    char text[2048];
    if (!load()) {
        ph_warn("cuDNN 9.8 or later was not found: its choice of engines and their workspace are "
                "unknown (taken as 0 bytes)");
        return;
    }
    int length = describe_device(text, sizeof text);
    int status = length < (int)sizeof text ? real.create(CUDNN_DEVICEPROP, &device_description)
                                           : CUDNN_BAD_PARAM;
    if (status == CUDNN_SUCCESS)
        status = real.set(device_description, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                          CUDNN_TYPE_CHAR, length, text);
    if (status == CUDNN_SUCCESS) status = real.finalize(device_description);
    if (status != CUDNN_SUCCESS) {
        ph_warn("cuDNN refused the description of the GPU (status %d): its workspace sizes are "
                "taken as 0 bytes",
                status);
        return;
    }
    available = true;
}

bool ph_cudnn_real_available(void)
{
    pthread_once(&once, prepare);
    return available;
}

bool ph_cudnn_real_has(int descriptor_type)
{
    void *empty;
    if (real.create(descriptor_type, &empty) != CUDNN_SUCCESS) return false;
    real.destroy(empty);
    return true;
}

bool ph_cudnn_real_takes(int descriptor_type, int name, int type, int64_t count, const void *values)
{
    void *empty;
    if (type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return true;
    if (real.create(descriptor_type, &empty) != CUDNN_SUCCESS) return false;
    int status = real.set(empty, name, type, count, values);
    real.destroy(empty);
    return status == CUDNN_SUCCESS;
}

void ph_cudnn_real_destroy(void *twin) { real.destroy(twin); }

void ph_cudnn_real_error(char *message, size_t size) { real.last_error(message, size); }

/* ---- twins ---- */

static int failed(int status)
{
    char message[512];
    real.last_error(message, sizeof message);
    return ph_cudnn_fail(status, "%s", message);
}

static int set_children(void *twin, const struct ph_cudnn_attribute *from)
{
    void **twins = malloc(sizeof *twins * (size_t)(from->count > 0 ? from->count : 1));
    if (twins == NULL) return CUDNN_HOST_ALLOCATION_FAILED;
    int status = CUDNN_SUCCESS;
    for (int64_t i = 0; i < from->count && status == CUDNN_SUCCESS; i++) {
        struct ph_cudnn_descriptor *child = ((struct ph_cudnn_descriptor **)from->values)[i];
        status = ph_cudnn_real_make(child);
        twins[i] = child->real;
    }
    if (status == CUDNN_SUCCESS) {
        status = real.set(twin, from->name, from->type, from->count, twins);
        if (status != CUDNN_SUCCESS) status = failed(status);
    }
    free(twins);
    return status;
}

int ph_cudnn_real_make(struct ph_cudnn_descriptor *descriptor)
{
    if (descriptor->real != NULL) return CUDNN_SUCCESS;
    void *twin;
    int status = real.create(descriptor->type, &twin);
    if (status != CUDNN_SUCCESS) return failed(status);
    for (int i = 0; i < descriptor->attribute_count && status == CUDNN_SUCCESS; i++) {
        const struct ph_cudnn_attribute *from = &descriptor->attributes[i];
        if (from->type == CUDNN_TYPE_HANDLE)
            continue; /* our handles mean nothing to it; the device is described instead */
        if (from->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            status = set_children(twin, from);
        } else {
            status = real.set(twin, from->name, from->type, from->count, from->values);
            if (status != CUDNN_SUCCESS) status = failed(status);
        }
    }
    int device = descriptor->type == CUDNN_ENGINEHEUR       ? CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
                 : descriptor->type == CUDNN_ENGINE         ? CUDNN_ATTR_ENGINE_DEVICEPROP
                 : descriptor->type == CUDNN_EXECUTION_PLAN ? CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP
                                                            : -1;
    if (status == CUDNN_SUCCESS && device >= 0 && ph_cudnn_find(descriptor, device) == NULL) {
        status = real.set(twin, device, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device_description);
        if (status != CUDNN_SUCCESS) status = failed(status);
    }
    if (status == CUDNN_SUCCESS) {
        status = real.finalize(twin);
        if (status != CUDNN_SUCCESS) status = failed(status);
    }
    if (status != CUDNN_SUCCESS)
        real.destroy(twin);
    else
        descriptor->real = twin;
    return status;
}

/* Gives the job's empty descriptors empty twins, which NVIDIA's library fills. */
static int make_empty(void **values, int64_t requested, void **twins)
{
    for (int64_t i = 0; i < requested; i++) {
        struct ph_cudnn_descriptor *ours = values[i];
        if (ours == NULL)
            return ph_cudnn_fail(CUDNN_NULL_POINTER, "element %lld is not a descriptor",
                                 (long long)i);
        if (ours->real == NULL) {
            int status = real.create(ours->type, &ours->real);
            if (status != CUDNN_SUCCESS) return failed(status);
        }
        twins[i] = ours->real;
    }
    return CUDNN_SUCCESS;
}

int ph_cudnn_real_get(struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t requested,
                      int64_t *count, void *values)
{
    void **twins = NULL;
    int status = CUDNN_SUCCESS;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && values != NULL && requested > 0) {
        twins = malloc(sizeof *twins * (size_t)requested);
        if (twins == NULL) return CUDNN_HOST_ALLOCATION_FAILED;
        status = make_empty(values, requested, twins);
    }
    if (status == CUDNN_SUCCESS) {
        status = real.get(descriptor->real, name, type, requested, count,
                          twins != NULL ? twins : values);
        if (status != CUDNN_SUCCESS) status = failed(status);
    }
    free(twins);
    return status;
}
