/* blas_calls.h - the cuBLAS functions that launch GPU work, and the arguments that describe it. The
 * file is a list, so it has no include guard.
 *
 * Why it exists: a simulated rank answers exactly the calls that a leader times. Both must make the
 * same signature from the same arguments.
 *
 * Rule: the including file defines PRODUCT(function, parameters, arguments, fields of struct
 * ph_product...) and VECTORS(function, parameters, arguments, numbers of the signature...). The
 * handle is `h`. */
#define GEMM(letter, type, compute)                                                               \
    PRODUCT(cublas##letter##gemm_v2,                                                              \
            (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,      \
             int lda, const void *b, int ldb, const void *beta, void *c, int ldc),                \
            (h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), ta, tb, m, n, k, 1, type,  \
            type, type, compute, lda, ldb, ldc)                                                   \
    PRODUCT(cublas##letter##gemmStridedBatched,                                                   \
            (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,      \
             int lda, long long sa, const void *b, int ldb, long long sb, const void *beta,       \
             void *c, int ldc, long long sc, int batch),                                          \
            (h, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch), ta, tb, \
            m, n, k, batch, type, type, type, compute, lda, ldb, ldc)                             \
    PRODUCT(cublas##letter##gemmBatched,                                                          \
            (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,      \
             int lda, const void *b, int ldb, const void *beta, void *c, int ldc, int batch),     \
            (h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch), ta, tb, m, n, k,    \
            batch, type, type, type, compute, lda, ldb, ldc)
GEMM(S, R_32F, COMPUTE_32F)
GEMM(D, R_64F, COMPUTE_64F)
GEMM(C, C_32F, COMPUTE_32F)
GEMM(Z, C_64F, COMPUTE_64F)
#undef GEMM

PRODUCT(cublasGemmEx,
        (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at,
         int lda, const void *b, int bt, int ldb, const void *beta, void *c, int ct, int ldc,
         int compute, int algorithm),
        (h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algorithm),
        ta, tb, m, n, k, 1, at, bt, ct, compute, lda, ldb, ldc)
PRODUCT(cublasSgemmEx,
        (void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at,
         int lda, const void *b, int bt, int ldb, const float *beta, void *c, int ct, int ldc),
        (h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc), ta, tb, m, n, k, 1,
        at, bt, ct, COMPUTE_32F, lda, ldb, ldc)
PRODUCT(cublasGemmStridedBatchedEx,
        (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at,
         int lda, long long sa, const void *b, int bt, int ldb, long long sb, const void *beta,
         void *c, int ct, int ldc, long long sc, int batch, int compute, int algorithm),
        (h, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batch,
         compute, algorithm),
        ta, tb, m, n, k, batch, at, bt, ct, compute, lda, ldb, ldc)
PRODUCT(cublasGemmBatchedEx,
        (void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a,
         int at, int lda, const void *const *b, int bt, int ldb, const void *beta, void *const *c,
         int ct, int ldc, int batch, int compute, int algorithm),
        (h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, batch, compute,
         algorithm),
        ta, tb, m, n, k, batch, at, bt, ct, compute, lda, ldb, ldc)

#define GEMV(letter)                                                                  \
    VECTORS(cublas##letter##gemv_v2,                                                  \
            (void *h, int t, int m, int n, const void *alpha, const void *a, int lda, \
             const void *x, int incx, const void *beta, void *y, int incy),           \
            (h, t, m, n, alpha, a, lda, x, incx, beta, y, incy), t, m, n)
GEMV(S)
GEMV(D)
GEMV(C)
GEMV(Z)
#undef GEMV

#define DOT(letter, kind)                                                                     \
    VECTORS(cublas##letter##dot##kind##_v2,                                                   \
            (void *h, int n, const void *x, int incx, const void *y, int incy, void *result), \
            (h, n, x, incx, y, incy, result), n)
DOT(S, )
DOT(D, )
DOT(C, u)
DOT(C, c)
DOT(Z, u)
DOT(Z, c)
#undef DOT
VECTORS(cublasDotEx,
        (void *h, int n, const void *x, int xt, int incx, const void *y, int yt, int incy,
         void *result, int rt, int et),
        (h, n, x, xt, incx, y, yt, incy, result, rt, et), n, xt)

#define TRSM(letter)                                                                               \
    VECTORS(cublas##letter##trsm_v2,                                                               \
            (void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha,    \
             const void *a, int lda, void *b, int ldb),                                            \
            (h, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb), side, uplo, trans, diag, m, \
            n)
TRSM(S)
TRSM(D)
TRSM(C)
TRSM(Z)
#undef TRSM
