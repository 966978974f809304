/* blas.c - the leader's cuBLAS and cuBLASLt: the real libraries compute, and the call's arguments
 * make the signature.
 *
 * Why it exists: the names and grids of their kernels do not tell the shapes (one persistent kernel
 * serves many), so the call is timed. Rule: the same functions as in a simulated rank are timed
 * (work/blas_calls.h, and cublasLtMatmul), with signatures by the same code
 * (work/blas_signature.c). What a simulated handle knows is read from the real one. */
#include "base/log.h"
#include "work/blas.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"

int cublasGetStream_v2(void *handle, void **stream);
int cublasGetMathMode(void *handle, int *mode);
int cublasLtMatmulDescGetAttribute(void *descriptor, int attribute, void *value, size_t bytes,
                                   size_t *written);
int cublasLtMatrixLayoutGetAttribute(void *layout, int attribute, void *value, size_t bytes,
                                     size_t *written);

/* of this thread's outermost call; nested calls make none */
static _Thread_local struct ph_signature signature;

/* The real call, observed when it has a signature. */
#define LEAD(has_signature, stream, call)                                      \
    (__extension__({                                                           \
        int status_;                                                           \
        if (has_signature) {                                                   \
            uint64_t token_ = ph_lead_begin((stream), &signature);             \
            status_ = PH_REAL_TIMED(PH_CALL_GEMM, call);                       \
            status_ == BLAS_OK ? ph_lead_end(token_) : ph_lead_cancel(token_); \
        } else                                                                 \
            status_ = (call);                                                  \
        status_;                                                               \
    }))

/* Host time spent on a signature is not the job's. outermost() is false for a part of another call.
 */
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

/* False: the call launches nothing, or the library will refuse the handle and report that itself.
 */
static bool product(void *handle, void **stream, struct ph_product fields)
{
    int mode = 0;
    if (!outermost()) return false;
    bool good = handle && PH_REAL(cublasGetStream_v2)(handle, stream) == BLAS_OK &&
                PH_REAL(cublasGetMathMode)(handle, &mode) == BLAS_OK;
    struct ph_gemm gemm = ph_gemm_fields(&fields, mode);
    return described(good && ph_gemm_signature(&signature, &gemm));
}

static bool vectors(void *handle, void **stream, const char *name, const int64_t *numbers,
                    uint32_t count)
{
    if (!outermost()) return false;
    bool good = handle && PH_REAL(cublasGetStream_v2)(handle, stream) == BLAS_OK;
    if (good) ph_call_signature(&signature, name, numbers, count);
    return described(good);
}

#define PRODUCT(function, parameters, arguments, ...)                      \
    PH_API(int, function, parameters)                                      \
    {                                                                      \
        void *stream;                                                      \
        bool ours = product(h, &stream, (struct ph_product){__VA_ARGS__}); \
        return LEAD(ours, stream, PH_REAL(function) arguments);            \
    }
#define VECTORS(function, parameters, arguments, ...)                             \
    PH_API(int, function, parameters)                                             \
    {                                                                             \
        void *stream;                                                             \
        bool ours = vectors(h, &stream, __func__, (const int64_t[]){__VA_ARGS__}, \
                            sizeof (int64_t[]){__VA_ARGS__} / sizeof(int64_t));   \
        return LEAD(ours, stream, PH_REAL(function) arguments);                   \
    }
#include "work/blas_calls.h"

/* ---- cuBLASLt: descriptors are the library's own, so each attribute is read, with its size ----
 */
static int64_t number(int (*get)(void *, int, void *, size_t, size_t *), void *descriptor,
                      int attribute, size_t bytes, bool *good)
{
    int64_t wide = 0;
    int32_t narrow = 0;
    size_t written;
    *good &= get(descriptor, attribute, bytes == 8 ? (void *)&wide : (void *)&narrow, bytes,
                 &written) == BLAS_OK;
    return bytes == 8 ? wide : narrow;
}

static struct ph_lt_layout layout_of(void *layout, bool *good)
{
    int (*get)(void *, int, void *, size_t, size_t *) = PH_REAL(cublasLtMatrixLayoutGetAttribute);
    return (struct ph_lt_layout){.type = number(get, layout, LAYOUT_TYPE, 4, good),
                                 .rows = number(get, layout, LAYOUT_ROWS, 8, good),
                                 .columns = number(get, layout, LAYOUT_COLS, 8, good),
                                 .ld = number(get, layout, LAYOUT_LD, 8, good),
                                 .batch = number(get, layout, LAYOUT_BATCH, 4, good)};
}

static bool lt_product(void *descriptor, void *a, void *b, void *c, void *d)
{
    bool good = descriptor && a && b && c && d;
    if (!good || !outermost()) return false;
    int (*get)(void *, int, void *, size_t, size_t *) = PH_REAL(cublasLtMatmulDescGetAttribute);
    struct ph_lt_product fields = {.transa = number(get, descriptor, DESC_TRANSA, 4, &good),
                                   .transb = number(get, descriptor, DESC_TRANSB, 4, &good),
                                   .compute = number(get, descriptor, DESC_COMPUTE, 4, &good),
                                   .epilogue = number(get, descriptor, DESC_EPILOGUE, 4, &good),
                                   .a = layout_of(a, &good),
                                   .b = layout_of(b, &good),
                                   .c = layout_of(c, &good),
                                   .d = layout_of(d, &good)};
    struct ph_gemm gemm = ph_lt_fields(&fields);
    if (!good)
        ph_warn("cuBLASLt does not give the attributes of a matrix product: it is not timed");
    return described(good && ph_gemm_signature(&signature, &gemm));
}

PH_API(int, cublasLtMatmul,
       (void *handle, void *descriptor, const void *alpha, const void *a, void *a_layout,
        const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
        void *d_layout, const void *algorithm, void *workspace, size_t bytes, void *stream))
{
    bool ours = lt_product(descriptor, a_layout, b_layout, c_layout, d_layout);
    return LEAD(ours, stream,
                PH_REAL(cublasLtMatmul)(handle, descriptor, alpha, a, a_layout, b, b_layout, beta,
                                        c, c_layout, d, d_layout, algorithm, workspace, bytes,
                                        stream));
}
