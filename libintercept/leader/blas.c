/* blas.c - the leader's cuBLAS and cuBLASLt: the real libraries compute, what was asked of them is the signature.
 *
 * Why it exists: their kernels' names and grids do not tell their shapes (one persistent kernel serves many), so the call is what is
 * timed. Rule: exactly the functions that a simulated rank answers with GPU work (cublas.c, cublaslt.c), their signatures by the same
 * code (blas_signature.c), with everything that a simulated handle knows read from the real one. */
#include "../cublas.h"
#include "leader.h"
#include "measure.h"

int cublasGetStream_v2(void *handle, void **stream);
int cublasGetMathMode(void *handle, int *mode);
int cublasLtMatmulDescGetAttribute(void *descriptor, int attribute, void *value, size_t bytes, size_t *written);
int cublasLtMatrixLayoutGetAttribute(void *layout, int attribute, void *value, size_t bytes, size_t *written);

static _Thread_local struct ph_pack signature; /* of this thread's outermost call: nested ones make none */

/* The real call, observed when it has a signature. */
#define LEAD(has_signature, stream, call)                                       \
    (__extension__({                                                            \
        int status_;                                                            \
        if (has_signature) {                                                    \
            uint64_t token_ = ph_lead_begin((stream), &signature);              \
            status_ = PH_REAL_TIMED(PH_CALL_GEMM, call);                        \
            status_ == BLAS_OK ? ph_lead_end(token_) : ph_lead_cancel(token_);  \
        } else                                                                  \
            status_ = (call);                                                   \
        status_;                                                                \
    }))

/* Around the making of a signature: host time that is not the job's. False for a part of another call. */
static bool outermost(void)
{
    if (ph_lead_inside()) return false;
    ph_host_pause();
    return true;
}

static bool described(bool has_signature)
{
    ph_host_resume();
    return has_signature;
}

/* False: nothing that launches, or a handle that the library refuses, which is the library's to report. */
static bool product(void *handle, void **stream, struct ph_product fields)
{
    int mode = 0;
    if (!outermost()) return false;
    bool good = handle && PH_REAL(cublasGetStream_v2)(handle, stream) == BLAS_OK && PH_REAL(cublasGetMathMode)(handle, &mode) == BLAS_OK;
    struct ph_gemm gemm = ph_gemm_fields(&fields, mode);
    return described(good && ph_gemm_pack(&signature, &gemm));
}

static bool vectors(void *handle, void **stream, const char *name, const int64_t *numbers, uint32_t count)
{
    if (!outermost()) return false;
    bool good = handle && PH_REAL(cublasGetStream_v2)(handle, stream) == BLAS_OK;
    if (good) ph_blas_call_pack(&signature, name, numbers, count);
    return described(good);
}
#define VECTORS(handle, stream, ...) \
    vectors(handle, stream, __func__, (const int64_t[]){__VA_ARGS__}, sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))

/* ---- matrix products ------------------------------------------------------------------------------------------------------------------- */
#define GEMM(letter, type, compute) \
    PH_EXPORT int cublas##letter##gemm_v2(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                          const void *beta, void *c, int ldc); \
    PH_EXPORT int cublas##letter##gemm_v2(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                          const void *beta, void *c, int ldc) \
    { \
        void *s; \
        bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, 1, type, type, type, compute, lda, ldb, ldc}); \
        return LEAD(ours, s, PH_REAL(cublas##letter##gemm_v2)(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)); \
    } \
    PH_EXPORT int cublas##letter##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, \
                                                     const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch); \
    PH_EXPORT int cublas##letter##gemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, \
                                                     const void *b, int ldb, long long sb, const void *beta, void *c, int ldc, long long sc, int batch) \
    { \
        void *s; \
        bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, batch, type, type, type, compute, lda, ldb, ldc}); \
        return LEAD(ours, s, PH_REAL(cublas##letter##gemmStridedBatched)(h, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, batch)); \
    } \
    PH_EXPORT int cublas##letter##gemmBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                              const void *beta, void *c, int ldc, int batch); \
    PH_EXPORT int cublas##letter##gemmBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, const void *b, int ldb, \
                                              const void *beta, void *c, int ldc, int batch) \
    { \
        void *s; \
        bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, batch, type, type, type, compute, lda, ldb, ldc}); \
        return LEAD(ours, s, PH_REAL(cublas##letter##gemmBatched)(h, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch)); \
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
    void *s;
    bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, 1, at, bt, ct, compute, lda, ldb, ldc});
    return LEAD(ours, s, PH_REAL(cublasGemmEx)(h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algorithm));
}

PH_EXPORT int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                            const float *beta, void *c, int ct, int ldc);
PH_EXPORT int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int at, int lda, const void *b, int bt, int ldb,
                            const float *beta, void *c, int ct, int ldc)
{
    void *s;
    bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, 1, at, bt, ct, COMPUTE_32F, lda, ldb, ldc});
    return LEAD(ours, s, PH_REAL(cublasSgemmEx)(h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc));
}

PH_EXPORT int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa, const void *b,
                                         int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch, int compute, int algorithm);
PH_EXPORT int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int at, int lda, long long sa, const void *b,
                                         int bt, int ldb, long long sb, const void *beta, void *c, int ct, int ldc, long long sc, int batch, int compute, int algorithm)
{
    void *s;
    bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, batch, at, bt, ct, compute, lda, ldb, ldc});
    return LEAD(ours, s, PH_REAL(cublasGemmStridedBatchedEx)(h, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt, ldb, sb, beta, c, ct, ldc, sc, batch, compute, algorithm));
}

PH_EXPORT int cublasGemmBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at, int lda, const void *const *b, int bt,
                                  int ldb, const void *beta, void *const *c, int ct, int ldc, int batch, int compute, int algorithm);
PH_EXPORT int cublasGemmBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *const *a, int at, int lda, const void *const *b, int bt,
                                  int ldb, const void *beta, void *const *c, int ct, int ldc, int batch, int compute, int algorithm)
{
    void *s;
    bool ours = product(h, &s, (struct ph_product){ta, tb, m, n, k, batch, at, bt, ct, compute, lda, ldb, ldc});
    return LEAD(ours, s, PH_REAL(cublasGemmBatchedEx)(h, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, batch, compute, algorithm));
}

/* ---- cuBLASLt: descriptors are the library's, so each attribute is asked for, with the size that it has there ---------------------------- */
static int64_t number(int (*get)(void *, int, void *, size_t, size_t *), void *descriptor, int attribute, size_t bytes, bool *good)
{
    int64_t wide = 0;
    int32_t narrow = 0;
    size_t written;
    *good &= get(descriptor, attribute, bytes == 8 ? (void *)&wide : (void *)&narrow, bytes, &written) == BLAS_OK;
    return bytes == 8 ? wide : narrow;
}

static struct ph_lt_layout layout_of(void *layout, bool *good)
{
    int (*get)(void *, int, void *, size_t, size_t *) = PH_REAL(cublasLtMatrixLayoutGetAttribute);
    return (struct ph_lt_layout){.type = number(get, layout, LAYOUT_TYPE, 4, good), .rows = number(get, layout, LAYOUT_ROWS, 8, good),
                                 .columns = number(get, layout, LAYOUT_COLS, 8, good), .ld = number(get, layout, LAYOUT_LD, 8, good),
                                 .batch = number(get, layout, LAYOUT_BATCH, 4, good)};
}

static bool lt_product(void *descriptor, void *a, void *b, void *c, void *d)
{
    bool good = descriptor && a && b && c && d;
    if (!good || !outermost()) return false;
    int (*get)(void *, int, void *, size_t, size_t *) = PH_REAL(cublasLtMatmulDescGetAttribute);
    struct ph_lt_product fields = {.transa = number(get, descriptor, DESC_TRANSA, 4, &good), .transb = number(get, descriptor, DESC_TRANSB, 4, &good),
                                   .compute = number(get, descriptor, DESC_COMPUTE, 4, &good), .epilogue = number(get, descriptor, DESC_EPILOGUE, 4, &good),
                                   .a = layout_of(a, &good), .b = layout_of(b, &good), .c = layout_of(c, &good), .d = layout_of(d, &good)};
    struct ph_gemm gemm = ph_lt_fields(&fields);
    if (!good) ph_warn("cuBLASLt does not tell the attributes of a matrix product: it is not timed");
    return described(good && ph_gemm_pack(&signature, &gemm));
}

PH_EXPORT int cublasLtMatmul(void *handle, void *descriptor, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const void *beta,
                             const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm, void *workspace, size_t bytes, void *stream);
PH_EXPORT int cublasLtMatmul(void *handle, void *descriptor, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout, const void *beta,
                             const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm, void *workspace, size_t bytes, void *stream)
{
    bool ours = lt_product(descriptor, a_layout, b_layout, c_layout, d_layout);
    return LEAD(ours, stream, PH_REAL(cublasLtMatmul)(handle, descriptor, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
                                                      bytes, stream));
}

/* ---- vectors ----------------------------------------------------------------------------------------------------------------------------- */
#define GEMV(letter) \
    PH_EXPORT int cublas##letter##gemv_v2(void *h, int t, int m, int n, const void *alpha, const void *a, int lda, const void *x, int incx, const void *beta, \
                                          void *y, int incy); \
    PH_EXPORT int cublas##letter##gemv_v2(void *h, int t, int m, int n, const void *alpha, const void *a, int lda, const void *x, int incx, const void *beta, \
                                          void *y, int incy) \
    { \
        void *s; \
        bool ours = VECTORS(h, &s, t, m, n); \
        return LEAD(ours, s, PH_REAL(cublas##letter##gemv_v2)(h, t, m, n, alpha, a, lda, x, incx, beta, y, incy)); \
    }
GEMV(S) GEMV(D) GEMV(C) GEMV(Z)

#define DOT(letter, kind) \
    PH_EXPORT int cublas##letter##dot##kind##_v2(void *h, int n, const void *x, int incx, const void *y, int incy, void *result); \
    PH_EXPORT int cublas##letter##dot##kind##_v2(void *h, int n, const void *x, int incx, const void *y, int incy, void *result) \
    { \
        void *s; \
        bool ours = VECTORS(h, &s, n); \
        return LEAD(ours, s, PH_REAL(cublas##letter##dot##kind##_v2)(h, n, x, incx, y, incy, result)); \
    }
DOT(S, ) DOT(D, ) DOT(C, u) DOT(C, c) DOT(Z, u) DOT(Z, c)

PH_EXPORT int cublasDotEx(void *h, int n, const void *x, int xt, int incx, const void *y, int yt, int incy, void *result, int rt, int et);
PH_EXPORT int cublasDotEx(void *h, int n, const void *x, int xt, int incx, const void *y, int yt, int incy, void *result, int rt, int et)
{
    void *s;
    bool ours = VECTORS(h, &s, n, xt);
    return LEAD(ours, s, PH_REAL(cublasDotEx)(h, n, x, xt, incx, y, yt, incy, result, rt, et));
}

#define TRSM(letter) \
    PH_EXPORT int cublas##letter##trsm_v2(void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha, const void *a, int lda, void *b, int ldb); \
    PH_EXPORT int cublas##letter##trsm_v2(void *h, int side, int uplo, int trans, int diag, int m, int n, const void *alpha, const void *a, int lda, void *b, int ldb) \
    { \
        void *s; \
        bool ours = VECTORS(h, &s, side, uplo, trans, diag, m, n); \
        return LEAD(ours, s, PH_REAL(cublas##letter##trsm_v2)(h, side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb)); \
    }
TRSM(S) TRSM(D) TRSM(C) TRSM(Z)
