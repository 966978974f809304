/* work/cudart.h - facts of CUDA 13's ABI that both backends need: error codes, dimensions and
 * launch attributes. */
#ifndef PH_CUDART_H
#define PH_CUDART_H
#include <stddef.h>

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_INVALID_SYMBOL = 13,
    CUDA_INVALID_FUNCTION = 98,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_FILE_NOT_FOUND = 301,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_HOST_ALREADY_REGISTERED = 712,
    CUDA_HOST_NOT_REGISTERED = 713,
    CUDA_NOT_SUPPORTED = 801
};
struct ph_dim3 {
    unsigned x, y, z;
};

/* cudaLaunchAttribute and CUlaunchAttribute: one layout, one numbering */
struct ph_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct ph_dim3 cluster;
    } value;
};
#endif
