/* cublas_solve.c - cuBLAS' batched solvers, which PyTorch's linear algebra uses for many small
 * matrices.
 *
 * Why it exists: they do the work of the solvers in cusolver.c, but take cuBLAS' handle. Every
 * result code is written as success: here a code on the host could only report bad arguments. */
#define PH_CLASS PH_ACCOUNTED
#include "base/api.h"
#include "work/blas.h"
#include "cudagraph/submit.h"
#include "simulated/memory/memory.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { S = R_32F, D = R_64F, C = C_32F, Z = C_64F };
int cublasGetStream_v2(void *handle, void **stream);

static int run(void *handle, const char *name, const int64_t numbers[5], int *host_info,
               int *device_info)
{
    struct ph_signature signature = {0};
    void *stream;
    int status = cublasGetStream_v2(handle, &stream);
    if (status) return status;
    for (int i = 1; i < 5; i++)
        if (numbers[i] < 0) return BLAS_INVALID_VALUE;
    ph_call_signature(&signature, name, numbers, 5);
    ph_submit(stream, &signature);
    ph_signature_free(&signature);
    if (host_info) *host_info = 0;
    ph_host_pause();
    if (device_info) ph_fill(device_info, 0, (size_t)numbers[4] * sizeof *device_info);
    ph_host_resume();
    return BLAS_OK;
}

/* One function for each of the types S, D, C, Z; its numbers are rows, columns, right-hand sides
 * and matrices. */
#define SOLVER_OF(T, name, parameters, host_info, device_info, ...)                         \
    PH_API(int, cublas##T##name, parameters)                                                \
    {                                                                                       \
        return run(h, __func__, (const int64_t[]){T, __VA_ARGS__}, host_info, device_info); \
    }
#define SOLVERS(...)          \
    SOLVER_OF(S, __VA_ARGS__) \
    SOLVER_OF(D, __VA_ARGS__) \
    SOLVER_OF(C, __VA_ARGS__) \
    SOLVER_OF(Z, __VA_ARGS__)

SOLVERS(getrfBatched, (void *h, int n, void *const *a, int lda, int *pivots, int *info, int batch),
        NULL, info, n, n, 0, batch)
SOLVERS(getrsBatched,
        (void *h, int trans, int n, int columns, const void *const *a, int lda, const int *pivots,
         void *const *b, int ldb, int *info, int batch),
        info, NULL, n, n, columns, batch)
SOLVERS(geqrfBatched,
        (void *h, int m, int n, void *const *a, int lda, void *const *tau, int *info, int batch),
        info, NULL, m, n, 0, batch)
SOLVERS(gelsBatched,
        (void *h, int trans, int m, int n, int columns, void *const *a, int lda, void *const *c,
         int ldc, int *info, int *device_info, int batch),
        info, device_info, m, n, columns, batch)
SOLVERS(trsmBatched,
        (void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha,
         const void *const *a, int lda, void *const *b, int ldb, int batch),
        NULL, NULL, side ? n : m, side ? n : m, side ? m : n, batch)
