/* cublas_solve.c - cuBLAS' batched solvers, which PyTorch's linear algebra uses for many small
 * matrices.
 *
 * Why it exists: they belong to the solvers of cusolver.c by what they do, and to cuBLAS by their
 * handle. Result codes are written as success; where they are the host's, only the caller's
 * arguments could be wrong. */
#define PH_CLASS PH_ACCOUNTED
#include "base/api.h"
#include "time/host_clock.h"
#include "work/blas.h"
#include "cudagraph/submit.h"
#include "simulated/memory/memory.h"

enum { S = R_32F, D = R_64F, C = C_32F, Z = C_64F };
int cublasGetStream_v2(void *handle, void **stream);

static int run(void *handle, const char *name, int type, int64_t m, int64_t n, int64_t k, int batch,
               int *host_info, int *device_info)
{
    struct ph_pack signature = {0};
    void *stream;
    int status = cublasGetStream_v2(handle, &stream);
    if (status) return status;
    if (m < 0 || n < 0 || k < 0 || batch < 0) return BLAS_INVALID_VALUE;
    ph_blas_call_pack(&signature, name, (const int64_t[]){type, m, n, k, batch}, 5);
    ph_submit(stream, &signature);
    ph_pack_free(&signature);
    if (host_info) *host_info = 0;
    ph_host_pause();
    if (device_info) ph_fill(device_info, 0, (size_t)batch * sizeof *device_info);
    ph_host_resume();
    return BLAS_OK;
}

#define SOLVERS(T)                                                                                \
    PH_EXPORT int cublas##T##getrfBatched(void *h, int n, void *const *a, int lda, int *pivots,   \
                                          int *info, int batch)                                   \
    {                                                                                             \
        return (void)a, (void)lda, (void)pivots, run(h, __func__, T, n, n, 0, batch, NULL, info); \
    }                                                                                             \
    PH_EXPORT int cublas##T##getrsBatched(void *h, int trans, int n, int columns,                 \
                                          const void *const *a, int lda, const int *pivots,       \
                                          void *const *b, int ldb, int *info, int batch)          \
    {                                                                                             \
        return (void)trans, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb,                 \
               run(h, __func__, T, n, n, columns, batch, info, NULL);                             \
    }                                                                                             \
    PH_EXPORT int cublas##T##geqrfBatched(void *h, int m, int n, void *const *a, int lda,         \
                                          void *const *tau, int *info, int batch)                 \
    {                                                                                             \
        return (void)a, (void)lda, (void)tau, run(h, __func__, T, m, n, 0, batch, info, NULL);    \
    }                                                                                             \
    PH_EXPORT int cublas##T##gelsBatched(void *h, int trans, int m, int n, int columns,           \
                                         void *const *a, int lda, void *const *c, int ldc,        \
                                         int *info, int *device_info, int batch)                  \
    {                                                                                             \
        return (void)trans, (void)a, (void)lda, (void)c, (void)ldc,                               \
               run(h, __func__, T, m, n, columns, batch, info, device_info);                      \
    }                                                                                             \
    PH_EXPORT int cublas##T##trsmBatched(void *h, int side, int uplo, int trans, int diag, int m, \
                                         int n, const void *alpha, const void *const *a, int lda, \
                                         void *const *b, int ldb, int batch)                      \
    {                                                                                             \
        (void)uplo, (void)trans, (void)diag, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb; \
        return run(h, __func__, T, side ? n : m, side ? n : m, side ? m : n, batch, NULL, NULL);  \
    }
SOLVERS(S) SOLVERS(D) SOLVERS(C) SOLVERS(Z)
