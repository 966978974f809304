/* cublas.c - cuBLAS: handles, matrix products, and the vector operations that PyTorch uses.
 *
 * Why it exists: cuBLAS links the CUDA runtime statically and cannot run over an emulated driver,
 * and the names of its kernels do not tell their shapes. So each call is answered here, and its
 * arguments make the signature. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "simulated/math/cublas.h"
#include "base/api.h"
#include "cudagraph/submit.h"
#include "simulated/cuda/versions.h"
#include <stdlib.h>

enum { BLAS_MAGIC = 0x5048424c };
struct handle {
    uint32_t magic;
    int math_mode, pointer_mode, atomics_mode, sm_target;
    void *stream, *workspace;
    size_t workspace_bytes;
};

static struct handle *valid(void *handle)
{
    bool made = handle && ((struct handle *)handle)->magic == BLAS_MAGIC;
    return made && !ph_forked() ? handle : NULL;
}

int ph_gemm(void *stream, const struct ph_gemm *gemm)
{
    static _Thread_local struct ph_signature signature;
    if (gemm->m < 0 || gemm->n < 0 || gemm->k < 0 || gemm->batch < 0) return BLAS_INVALID_VALUE;
    if (ph_gemm_signature(&signature, gemm)) ph_submit(stream, &signature);
    return BLAS_OK;
}

/* ---- handles ---- */
PH_API(int, cublasCreate_v2, (void **handle))
{
    if (ph_forked()) return BLAS_NOT_INITIALIZED;
    struct handle *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return 3; /* CUBLAS_STATUS_ALLOC_FAILED */
    fresh->magic = BLAS_MAGIC;
    ph_host_call(PH_CALL_MALLOC);
    *handle = fresh;
    return BLAS_OK;
}
PH_API(int, cublasDestroy_v2, (void *handle))
{
    struct handle *old = valid(handle);
    if (!old) return BLAS_NOT_INITIALIZED;
    old->magic = 0;
    free(old);
    return BLAS_OK;
}

#define SETTER(function, type, field)                 \
    PH_API(int, function, (void *handle, type value)) \
    {                                                 \
        struct handle *blas = valid(handle);          \
        if (!blas) return BLAS_NOT_INITIALIZED;       \
        blas->field = value;                          \
        return BLAS_OK;                               \
    }
#define GETTER(function, type, field)                  \
    PH_API(int, function, (void *handle, type *value)) \
    {                                                  \
        struct handle *blas = valid(handle);           \
        if (!blas) return BLAS_NOT_INITIALIZED;        \
        *value = blas->field;                          \
        return BLAS_OK;                                \
    }
SETTER(cublasSetStream_v2, void *, stream)
GETTER(cublasGetStream_v2, void *, stream)
SETTER(cublasSetMathMode, int, math_mode)
GETTER(cublasGetMathMode, int, math_mode)
SETTER(cublasSetPointerMode_v2, int, pointer_mode)
GETTER(cublasGetPointerMode_v2, int, pointer_mode)
SETTER(cublasSetAtomicsMode, int, atomics_mode)
GETTER(cublasGetAtomicsMode, int, atomics_mode)
SETTER(cublasSetSmCountTarget, int, sm_target)
GETTER(cublasGetSmCountTarget, int, sm_target)

PH_API(int, cublasSetWorkspace_v2, (void *handle, void *workspace, size_t bytes))
{
    struct handle *blas = valid(handle);
    if (!blas) return BLAS_NOT_INITIALIZED;
    blas->workspace = workspace;
    blas->workspace_bytes = bytes;
    return BLAS_OK;
}
PH_API(int, cublasGetVersion_v2, (void *handle, int *version))
{
    (void)handle;
    *version = ph_blas_version();
    return BLAS_OK;
}
static const char *status_name(int status)
{
    static const char *const names[] = {"CUBLAS_STATUS_SUCCESS",
                                        "CUBLAS_STATUS_NOT_INITIALIZED",
                                        "",
                                        "CUBLAS_STATUS_ALLOC_FAILED",
                                        "",
                                        "",
                                        "",
                                        "CUBLAS_STATUS_INVALID_VALUE",
                                        "CUBLAS_STATUS_ARCH_MISMATCH",
                                        "",
                                        "",
                                        "CUBLAS_STATUS_MAPPING_ERROR",
                                        "",
                                        "CUBLAS_STATUS_EXECUTION_FAILED",
                                        "CUBLAS_STATUS_INTERNAL_ERROR",
                                        "CUBLAS_STATUS_NOT_SUPPORTED",
                                        "CUBLAS_STATUS_LICENSE_ERROR"};
    return status >= 0 && status < (int)(sizeof names / sizeof *names) && *names[status]
               ? names[status]
               : "unknown cuBLAS status";
}
PH_API(const char *, cublasGetStatusName, (int status)) { return status_name(status); }
PH_API(const char *, cublasGetStatusString, (int status)) { return status_name(status); }

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
/* ---- work: the call gives the time; the values library computes small results on the CPU ---- */
static int product(void *handle, struct ph_product fields)
{
    struct handle *blas = valid(handle);
    if (!blas) return BLAS_NOT_INITIALIZED;
    struct ph_gemm gemm = ph_gemm_fields(&fields, blas->math_mode);
    return ph_gemm(blas->stream, &gemm);
}

static int vectors(void *handle, const char *name, const int64_t *numbers, uint32_t count)
{
    struct handle *blas = valid(handle);
    struct ph_signature signature = {0};
    if (!blas) return BLAS_NOT_INITIALIZED;
    ph_call_signature(&signature, name, numbers, count);
    ph_submit(blas->stream, &signature);
    ph_signature_free(&signature);
    return BLAS_OK;
}

#define PRODUCT(function, parameters, arguments, ...) \
    PH_API(int, function, parameters) { return product(h, (struct ph_product){__VA_ARGS__}); }
#define VECTORS(function, parameters, arguments, ...)                      \
    PH_API(int, function, parameters)                                      \
    {                                                                      \
        return vectors(h, __func__, (const int64_t[]){__VA_ARGS__},        \
                       sizeof (int64_t[]){__VA_ARGS__} / sizeof(int64_t)); \
    }
/* most arguments are operands and factors, which affect values only */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "work/blas_calls.h"
