/* cudnn_legacy.c - the batch normalisation functions of cuDNN's older API, which PyTorch uses to
 * train convolutional networks.
 *
 * Why it exists: PyTorch uses the graph API for attention and convolutions, but these functions for
 * fp32 batch normalisation. Rule: descriptors keep what was set; a call becomes a `call` signature
 * of its integers (docs/wire-protocol.md, kind 4). The rest of the older API (recurrent networks,
 * CTC, convolutions) is refused by the generated stubs. */
#define PH_CLASS PH_SIMULATED
#include "base/log.h"
#include "cudagraph/submit.h"
#include "simulated/math/cudnn.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x63646e74, MOST_DIMENSIONS = 8 /* CUDNN_DIM_MAX */ };

struct tensor_descriptor { /* a tensor or filter descriptor */
    uint32_t magic;
    int data_type, format, dimensions;
    int dims[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
};

static bool valid(const struct tensor_descriptor *tensor)
{
    return tensor != NULL && tensor->magic == MAGIC;
}

static int create(struct tensor_descriptor **descriptor)
{
    if (descriptor == NULL) return ph_cudnn_fail(CUDNN_NULL_POINTER, "no place for the descriptor");
    struct tensor_descriptor *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDNN_HOST_ALLOCATION_FAILED;
    made->magic = MAGIC;
    *descriptor = made;
    return CUDNN_SUCCESS;
}

static int destroy(struct tensor_descriptor *descriptor)
{
    if (!valid(descriptor)) return ph_cudnn_fail(CUDNN_NULL_POINTER, "not a descriptor");
    descriptor->magic = 0;
    free(descriptor);
    return CUDNN_SUCCESS;
}

static int set(struct tensor_descriptor *descriptor, int data_type, int format, int dimensions,
               const int *dims, const int *strides)
{
    if (!valid(descriptor) || dims == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "not a descriptor, or no dimensions");
    if (dimensions < 1 || dimensions > MOST_DIMENSIONS)
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "%d dimensions; 1 to %d are possible", dimensions,
                             MOST_DIMENSIONS);
    descriptor->data_type = data_type;
    descriptor->format = format;
    descriptor->dimensions = dimensions;
    memset(descriptor->dims, 0, sizeof descriptor->dims);
    memset(descriptor->strides, 0, sizeof descriptor->strides);
    memcpy(descriptor->dims, dims, sizeof *dims * (size_t)dimensions);
    if (strides != NULL) memcpy(descriptor->strides, strides, sizeof *strides * (size_t)dimensions);
    return CUDNN_SUCCESS;
}

/* Copies the entries that exist and were asked for. Any target may be NULL. */
static int get(const struct tensor_descriptor *descriptor, int requested, int *data_type,
               int *dimensions, int *dims, int *strides)
{
    if (!valid(descriptor)) return ph_cudnn_fail(CUDNN_NULL_POINTER, "not a descriptor");
    if (requested < 0 || requested > MOST_DIMENSIONS)
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "%d dimensions were asked for; at most %d", requested,
                             MOST_DIMENSIONS);
    size_t bytes =
        sizeof(int) *
        (size_t)(requested < descriptor->dimensions ? requested : descriptor->dimensions);
    if (data_type != NULL) *data_type = descriptor->data_type;
    if (dimensions != NULL) *dimensions = descriptor->dimensions;
    if (dims != NULL) memcpy(dims, descriptor->dims, bytes);
    if (strides != NULL) memcpy(strides, descriptor->strides, bytes);
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnCreateTensorDescriptor, (struct tensor_descriptor **descriptor))
{
    return create(descriptor);
}

PH_API(int, cudnnDestroyTensorDescriptor, (struct tensor_descriptor *descriptor))
{
    return destroy(descriptor);
}

PH_API(int, cudnnSetTensorNdDescriptor,
       (struct tensor_descriptor *descriptor, int data_type, int dimensions, const int *dims,
        const int *strides))
{
    if (strides == NULL) return ph_cudnn_fail(CUDNN_NULL_POINTER, "no strides");
    return set(descriptor, data_type, 0, dimensions, dims, strides);
}

PH_API(int, cudnnGetTensorNdDescriptor,
       (const struct tensor_descriptor *descriptor, int requested, int *data_type, int *dimensions,
        int *dims, int *strides))
{
    return get(descriptor, requested, data_type, dimensions, dims, strides);
}

PH_API(int, cudnnCreateFilterDescriptor, (struct tensor_descriptor **descriptor))
{
    return create(descriptor);
}

PH_API(int, cudnnDestroyFilterDescriptor, (struct tensor_descriptor *descriptor))
{
    return destroy(descriptor);
}

PH_API(int, cudnnSetFilterNdDescriptor,
       (struct tensor_descriptor *descriptor, int data_type, int format, int dimensions,
        const int *dims))
{
    return set(descriptor, data_type, format, dimensions, dims, NULL);
}

PH_API(int, cudnnGetFilterNdDescriptor,
       (const struct tensor_descriptor *descriptor, int requested, int *data_type, int *format,
        int *dimensions, int *dims))
{
    int status = get(descriptor, requested, data_type, dimensions, dims, NULL);
    if (status == CUDNN_SUCCESS && format != NULL) *format = descriptor->format;
    return status;
}

/* ---- batch normalisation ---- */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static int run(const void *handle, const char *name, int mode, int operations,
               const struct tensor_descriptor *x, const struct tensor_descriptor *parameters)
{
    bool valid_handle;
    void *stream = ph_cudnn_stream(handle, &valid_handle);
    if (!valid_handle || !valid(x) || !valid(parameters))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "%s: no handle, or not a tensor descriptor", name);
    struct ph_signature signature = {0};
    ph_cudnn_norm_signature(&signature, name, mode, operations, x->data_type, parameters->data_type,
                            x->dimensions, x->dims, x->strides);
    ph_submit(stream, &signature);
    ph_signature_free(&signature);
    return CUDNN_SUCCESS;
}

enum { PERSISTENT = 2 /* CUDNN_BATCHNORM_SPATIAL_PERSISTENT */, FLOAT = 0 /* CUDNN_DATA_FLOAT */ };
enum direction { FORWARD, BACKWARD };

/* The workspace of batch normalisation in training, in bytes. NVIDIA's library answers only for a
 * handle on a GPU, so this is a law: an H200 with cuDNN 9.19 gave these answers to all 70,704
 * questions of bench/kernels/norm_sizes.py. Only the persistent kernels of channels-last tensors
 * need one: each block of rows leaves two floats a channel, for groups of so many channels. */
static size_t workspace(int mode, const struct tensor_descriptor *x, enum direction direction)
{
    if (mode != PERSISTENT || x->dimensions < 2) return 0;
    size_t channels = (size_t)x->dims[1], rows = (size_t)x->dims[0];
    for (int i = 2; i < x->dimensions; i++) rows *= (size_t)x->dims[i];
    bool channels_last = x->strides[1] == 1 || channels == 1 || rows == (size_t)x->dims[0];
    if (!channels_last || channels == 0 || rows == 0) return 0;
    size_t width = channels % 4 == 0 ? 64 : channels < 4 ? 4 : 16;
    size_t groups = (channels + width - 1) / width;
    size_t rows_of_block = direction == BACKWARD ? 96 : x->data_type == FLOAT ? 64 : 160;
    if (width == 4) rows_of_block *= 4;
    size_t blocks = (rows + rows_of_block - 1) / rows_of_block;
    size_t counter = direction == FORWARD ? sizeof(int) : 0;
    size_t fixed = direction == FORWARD ? 1072 : 1056;
    return fixed + groups * (sizeof(int) + blocks * (width * 2 * sizeof(float) + counter));
}

static int answer(const struct tensor_descriptor *x, size_t *bytes, size_t size)
{
    if (!valid(x) || bytes == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER,
                             "not a tensor descriptor, or no place for the size");
    *bytes = size;
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
       (void *handle, int mode, int operations, const struct tensor_descriptor *x,
        const struct tensor_descriptor *z, const struct tensor_descriptor *y,
        const struct tensor_descriptor *parameters, const void *activation, size_t *bytes))
{
    return answer(x, bytes, valid(x) ? workspace(mode, x, FORWARD) : 0);
}

PH_API(int, cudnnGetBatchNormalizationBackwardExWorkspaceSize,
       (void *handle, int mode, int operations, const struct tensor_descriptor *x,
        const struct tensor_descriptor *y, const struct tensor_descriptor *dy,
        const struct tensor_descriptor *dz, const struct tensor_descriptor *dx,
        const struct tensor_descriptor *parameters, const void *activation, size_t *bytes))
{
    return answer(x, bytes, valid(x) ? workspace(mode, x, BACKWARD) : 0);
}

/* Without a fused activation (operations 0, all that PyTorch uses) nothing is reserved. */
PH_API(int, cudnnGetBatchNormalizationTrainingExReserveSpaceSize,
       (void *handle, int mode, int operations, const void *activation,
        const struct tensor_descriptor *x, size_t *bytes))
{
    return answer(x, bytes, 0);
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
PH_API(int, cudnnBatchNormalizationForwardTrainingEx,
       (void *handle, int mode, int operations, const void *alpha, const void *beta,
        const struct tensor_descriptor *x, const void *x_data, const struct tensor_descriptor *z,
        const void *z_data, const struct tensor_descriptor *y, void *y_data,
        const struct tensor_descriptor *parameters, const void *scale, const void *bias,
        double factor, void *running_mean, void *running_variance, double epsilon, void *saved_mean,
        void *saved_variance, const void *activation, void *workspace, size_t workspace_bytes,
        void *reserve, size_t reserve_bytes))
{
    return run(handle, "cudnnBatchNormalizationForwardTraining", mode, operations, x, parameters);
}

PH_API(int, cudnnBatchNormalizationForwardInference,
       (void *handle, int mode, const void *alpha, const void *beta,
        const struct tensor_descriptor *x, const void *x_data, const struct tensor_descriptor *y,
        void *y_data, const struct tensor_descriptor *parameters, const void *scale,
        const void *bias, const void *mean, const void *variance, double epsilon))
{
    return run(handle, "cudnnBatchNormalizationForwardInference", mode, 0, x, parameters);
}

PH_API(int, cudnnBatchNormalizationBackwardEx,
       (void *handle, int mode, int operations, const void *alpha_data, const void *beta_data,
        const void *alpha_parameters, const void *beta_parameters,
        const struct tensor_descriptor *x, const void *x_data, const struct tensor_descriptor *y,
        const void *y_data, const struct tensor_descriptor *dy, const void *dy_data,
        const struct tensor_descriptor *dz, void *dz_data, const struct tensor_descriptor *dx,
        void *dx_data, const struct tensor_descriptor *parameters, const void *scale,
        const void *bias, void *scale_gradient, void *bias_gradient, double epsilon,
        const void *saved_mean, const void *saved_variance, const void *activation, void *workspace,
        size_t workspace_bytes, void *reserve, size_t reserve_bytes))
{
    return run(handle, "cudnnBatchNormalizationBackward", mode, operations, x, parameters);
}
