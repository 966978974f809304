/* cublas.c - cuBLAS: handles, matrix products, and the vector operations that PyTorch uses.
 *
 * Why it exists: cuBLAS links the CUDA runtime statically and cannot run over an emulated driver, and its kernels' names say
 * nothing of their shapes; so each call is answered here and its descriptor is the signature. */
#define PH_CLASS PH_SIMULATED
#include "../cublas.h"
#include <stdlib.h>

enum { BLAS_MAGIC = 0x5048424c };
struct handle {
    uint32_t magic;
    int math_mode, pointer_mode, atomics_mode, sm_target;
    void *stream, *workspace;
    size_t workspace_bytes;
};

static struct handle *valid(void *handle) { return handle && ((struct handle *)handle)->magic == BLAS_MAGIC ? handle : NULL; }

int ph_gemm(void *stream, const struct ph_gemm *gemm)
{
    static _Thread_local struct ph_pack signature;
    if (gemm->m < 0 || gemm->n < 0 || gemm->k < 0 || gemm->batch < 0) return BLAS_INVALID_VALUE;
    if (ph_gemm_pack(&signature, gemm)) ph_submit(stream, &signature);
    return BLAS_OK;
}

static int call(struct handle *handle, const char *name, const int64_t *numbers, uint32_t count)
{
    struct ph_pack signature = {0};
    if (!handle) return BLAS_NOT_INITIALIZED;
    ph_blas_call_pack(&signature, name, numbers, count);
    ph_submit(handle->stream, &signature);
    ph_pack_free(&signature);
    return BLAS_OK;
}
#define CALL(handle, ...) \
    call(valid(handle), __func__, (const int64_t[]){__VA_ARGS__}, sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))

/* ---- handles ---------------------------------------------------------------------------------------------------------------- */
PH_EXPORT int cublasCreate_v2(void **handle);
PH_EXPORT int cublasCreate_v2(void **handle)
{
    struct handle *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return 3; /* CUBLAS_STATUS_ALLOC_FAILED */
    fresh->magic = BLAS_MAGIC;
    ph_host_call(PH_CALL_MALLOC);
    *handle = fresh;
    return BLAS_OK;
}
PH_EXPORT int cublasDestroy_v2(void *handle);
PH_EXPORT int cublasDestroy_v2(void *handle)
{
    struct handle *old = valid(handle);
    if (!old) return BLAS_NOT_INITIALIZED;
    old->magic = 0;
    free(old);
    return BLAS_OK;
}

#define SETTER(function, type, field) \
    PH_EXPORT int function(void *handle, type value); \
    PH_EXPORT int function(void *handle, type value) \
    { \
        struct handle *blas = valid(handle); \
        if (!blas) return BLAS_NOT_INITIALIZED; \
        blas->field = value; \
        return BLAS_OK; \
    }
#define GETTER(function, type, field) \
    PH_EXPORT int function(void *handle, type *value); \
    PH_EXPORT int function(void *handle, type *value) \
    { \
        struct handle *blas = valid(handle); \
        if (!blas) return BLAS_NOT_INITIALIZED; \
        *value = blas->field; \
        return BLAS_OK; \
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

PH_EXPORT int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes);
PH_EXPORT int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes)
{
    struct handle *blas = valid(handle);
    if (!blas) return BLAS_NOT_INITIALIZED;
    blas->workspace = workspace;
    blas->workspace_bytes = bytes;
    return BLAS_OK;
}
PH_EXPORT int cublasGetVersion_v2(void *handle, int *version);
PH_EXPORT int cublasGetVersion_v2(void *handle, int *version)
{
    (void)handle;
    *version = 130100; /* cuBLAS of CUDA 13, as the wheels of torch 2.11 carry it */
    return BLAS_OK;
}
static const char *status_name(int status)
{
    static const char *const names[] = {"CUBLAS_STATUS_SUCCESS", "CUBLAS_STATUS_NOT_INITIALIZED", "", "CUBLAS_STATUS_ALLOC_FAILED", "", "", "",
                                        "CUBLAS_STATUS_INVALID_VALUE", "CUBLAS_STATUS_ARCH_MISMATCH", "", "", "CUBLAS_STATUS_MAPPING_ERROR", "", 
                                        "CUBLAS_STATUS_EXECUTION_FAILED", "CUBLAS_STATUS_INTERNAL_ERROR", "CUBLAS_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_LICENSE_ERROR"};
    return status >= 0 && status < (int)(sizeof names / sizeof *names) && *names[status] ? names[status] : "unknown cuBLAS status";
}
PH_EXPORT const char *cublasGetStatusName(int status);
PH_EXPORT const char *cublasGetStatusName(int status) { return status_name(status); }
PH_EXPORT const char *cublasGetStatusString(int status);
PH_EXPORT const char *cublasGetStatusString(int status) { return status_name(status); }

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
/* ---- matrix products ------------------------------------------------------------------------------------------------------------ */
static int product(void *handle, int transa, int transb, int64_t m, int64_t n, int64_t k, int64_t batch, int type, int ctype, int btype, int compute,
                   int64_t lda, int64_t ldb, int64_t ldc)
{
    struct handle *blas = valid(handle);
    if (!blas) return BLAS_NOT_INITIALIZED;
    struct ph_gemm gemm = ph_gemm_fields(&(struct ph_product){transa, transb, m, n, k, batch, type, btype, ctype, compute, lda, ldb, ldc}, blas->math_mode);
    return ph_gemm(blas->stream, &gemm);
}

#define GEMM(letter, type, compute) \
    PH_EXPORT int cublas##letter##gemm_v2(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                          const void *beta, void *c, int ldc); \
    PH_EXPORT int cublas##letter##gemm_v2(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                          const void *beta, void *c, int ldc) \
    { \
        (void)alpha, (void)a, (void)b, (void)beta, (void)c; \
        return product(h, ta, tb, m, n, k, 1, type, type, type, compute, lda, ldb, ldc); \
    } \
    PH_EXPORT int cublas##letter##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, \
                                                     const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch); \
    PH_EXPORT int cublas##letter##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, \
                                                     const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch) \
    { \
        (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)sa, (void)sb, (void)sc; \
        return product(h, ta, tb, m, n, k, batch, type, type, type, compute, lda, ldb, ldc); \
    } \
    PH_EXPORT int cublas##letter##gemmBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                              const void *beta, void *c, int ldc, int batch); \
    PH_EXPORT int cublas##letter##gemmBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                              const void *beta, void *c, int ldc, int batch) \
    { \
        (void)alpha, (void)a, (void)b, (void)beta, (void)c; \
        return product(h, ta, tb, m, n, k, batch, type, type, type, compute, lda, ldb, ldc); \
    }
GEMM(S, R_32F, COMPUTE_32F)
GEMM(D, R_64F, COMPUTE_64F)
GEMM(C, C_32F, COMPUTE_32F)
GEMM(Z, C_64F, COMPUTE_64F)

PH_EXPORT int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                           const void *beta, void *c, int ct, int ldc, int compute, int algorithm);
PH_EXPORT int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                           const void *beta, void *c, int ct, int ldc, int compute, int algorithm)
{
    (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)algorithm;
    return product(h, ta, tb, m, n, k, 1, at, ct, bt, compute, lda, ldb, ldc);
}
PH_EXPORT int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                            const float *beta, void *c, int ct, int ldc);
PH_EXPORT int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                            const float *beta, void *c, int ct, int ldc)
{
    (void)alpha, (void)a, (void)b, (void)beta, (void)c;
    return product(h, ta, tb, m, n, k, 1, at, ct, bt, COMPUTE_32F, lda, ldb, ldc);
}
PH_EXPORT int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa, const void *b,
                                         int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch, int compute, int algorithm);
PH_EXPORT int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa, const void *b,
                                         int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch, int compute, int algorithm)
{
    (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)algorithm, (void)sa, (void)sb, (void)sc;
    return product(h, ta, tb, m, n, k, batch, at, ct, bt, compute, lda, ldb, ldc);
}
PH_EXPORT int cublasGemmBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at, int lda, const void *const *b, int bt,
                                  int ldb, const void *beta, void *const *c, int ct, int ldc, int batch, int compute, int algorithm);
PH_EXPORT int cublasGemmBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at, int lda, const void *const *b, int bt,
                                  int ldb, const void *beta, void *const *c, int ct, int ldc, int batch, int compute, int algorithm)
{
    (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)algorithm;
    return product(h, ta, tb, m, n, k, batch, at, ct, bt, compute, lda, ldb, ldc);
}

/* ---- vectors: values come from the CPU when they are small (libintercept/values), the time from the call ------------------------- */
#define GEMV(letter) \
    PH_EXPORT int cublas##letter##gemv_v2(void *h, int t, int m, int n, const void *alpha, const void *a, int lda, const void *x, int incx, const void *beta, \
                                          void *y, int incy); \
    PH_EXPORT int cublas##letter##gemv_v2(void *h, int t, int m, int n, const void *alpha, const void *a, int lda, const void *x, int incx, const void *beta, \
                                          void *y, int incy) \
    { \
        (void)alpha, (void)a, (void)lda, (void)x, (void)incx, (void)beta, (void)y, (void)incy; \
        return CALL(h, t, m, n); \
    }
GEMV(S) GEMV(D) GEMV(C) GEMV(Z)

#define DOT(letter, kind) \
    PH_EXPORT int cublas##letter##dot##kind##_v2(void *h, int n, const void *x, int incx, const void *y, int incy, void *result); \
    PH_EXPORT int cublas##letter##dot##kind##_v2(void *h, int n, const void *x, int incx, const void *y, int incy, void *result) \
    { \
        (void)x, (void)incx, (void)y, (void)incy, (void)result; \
        return CALL(h, n); \
    }
DOT(S, ) DOT(D, ) DOT(C, u) DOT(C, c) DOT(Z, u) DOT(Z, c)

PH_EXPORT int cublasDotEx(void *h, int n, const void *x, int xt, int incx, const void *y, int yt, int incy, void *result, int rt, int et);
PH_EXPORT int cublasDotEx(void *h, int n, const void *x, int xt, int incx, const void *y, int yt, int incy, void *result, int rt, int et)
{
    (void)x, (void)incx, (void)y, (void)yt, (void)incy, (void)result, (void)rt, (void)et;
    return CALL(h, n, xt);
}

#define TRSM(letter) \
    PH_EXPORT int cublas##letter##trsm_v2(void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha, const void *a, int lda, void *b, int ldb); \
    PH_EXPORT int cublas##letter##trsm_v2(void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha, const void *a, int lda, void *b, int ldb) \
    { \
        (void)alpha, (void)a, (void)lda, (void)b, (void)ldb; \
        return CALL(h, side, uplo, trans, diag, m, n); \
    }
TRSM(S) TRSM(D) TRSM(C) TRSM(Z)
