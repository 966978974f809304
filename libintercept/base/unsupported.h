/* base/unsupported.h - stubs for functions that we export but do not implement.
 *
 * Why it exists: the generated unsupported_*.gen.c files hold names only.
 *
 * Rule: a stub returns its API's own "not supported" code and reports its name once. Stubs are
 * weak, so any handwritten definition replaces them and the lists need no exceptions. */
#ifndef PH_UNSUPPORTED_H
#define PH_UNSUPPORTED_H
#ifndef PH_CLASS
#define PH_CLASS PH_REFUSED
#endif
#include "base/log.h"

/* The codes: cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED (driver_types.h, cuda.h),
 * CUBLAS_STATUS_NOT_SUPPORTED (cublas_api.h), CUDNN_STATUS_NOT_SUPPORTED (cudnn_graph.h),
 * ncclInvalidUsage (nccl.h has no better one), NVML_ERROR_NOT_SUPPORTED (nvml.h),
 * CUFFT_NOT_SUPPORTED (cufft.h), CUSOLVER_STATUS_NOT_SUPPORTED (cusolver_common.h),
 * CUSPARSE_STATUS_NOT_SUPPORTED (cusparse.h), CU_FILE_PLATFORM_NOT_SUPPORTED (cufile.h). */
enum {
    PH_CUDA_UNSUPPORTED = 801,
    PH_CUBLAS_UNSUPPORTED = 15,
    PH_CUDNN_UNSUPPORTED = 3000,
    PH_NCCL_UNSUPPORTED = 5,
    PH_NVML_UNSUPPORTED = 3,
    PH_CUFFT_UNSUPPORTED = 16,
    PH_CUSOLVER_UNSUPPORTED = 9,
    PH_CUSPARSE_UNSUPPORTED = 10,
    /* the first half of a CUfileError_t; the second, a CUresult, is the upper 0 of the register */
    PH_CUFILE_UNSUPPORTED = 5007,
};

#define PH_STUB __attribute__((weak)) PH_EXPORT

/* Stub of a function that returns a status. */
#define PH_UNSUPPORTED(code, name) \
    PH_STUB int name(void);        \
    PH_STUB int name(void)         \
    {                              \
        ph_unsupported(#name);     \
        return code;               \
    }
/* Stub of a function that returns a number, a pointer or nothing. It returns 0, the only value it
 * can give. */
#define PH_UNSUPPORTED_VALUE(name) \
    PH_STUB void *name(void);      \
    PH_STUB void *name(void)       \
    {                              \
        ph_unsupported(#name);     \
        return NULL;               \
    }

#endif
