/* cublaslt.c - cuBLASLt: descriptors as attribute bags, one heuristic result, and the product
 * itself.
 *
 * Why it exists: PyTorch uses it for fp8 and for linear layers with a bias or an epilogue. The
 * heuristic must find an algorithm; otherwise PyTorch warns and takes another path than on a real
 * GPU. */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "simulated/cuda/versions.h"
#include "simulated/math/cublas.h"
#include <stdlib.h>
#include <string.h>

enum { ATTRIBUTES = 64, DESCRIPTOR = 0x50484c44, LAYOUT = 0x50484c4c, PREFERENCE = 0x50484c50 };

struct bag { /* any descriptor: small attributes by number */
    uint32_t magic;
    struct {
        unsigned char bytes[16];
        size_t length;
    } attribute[ATTRIBUTES];
};

static struct bag *bag_create(uint32_t magic)
{
    struct bag *bag = calloc(1, sizeof *bag);
    if (bag) bag->magic = magic;
    return bag;
}

static int bag_set(void *handle, uint32_t magic, int attribute, const void *value, size_t bytes)
{
    struct bag *bag = handle;
    if (!bag || bag->magic != magic || attribute < 0 || attribute >= ATTRIBUTES || !value)
        return BLAS_INVALID_VALUE;
    if (bytes > sizeof bag->attribute[0].bytes) return BLAS_INVALID_VALUE;
    memcpy(bag->attribute[attribute].bytes, value, bytes);
    bag->attribute[attribute].length = bytes;
    return BLAS_OK;
}

static int bag_get(void *handle, uint32_t magic, int attribute, void *value, size_t bytes,
                   size_t *written)
{
    struct bag *bag = handle;
    if (!bag || bag->magic != magic || attribute < 0 || attribute >= ATTRIBUTES)
        return BLAS_INVALID_VALUE;
    size_t length = bag->attribute[attribute].length;
    if (written) *written = length;
    if (!value || bytes < length) return BLAS_INVALID_VALUE;
    memcpy(value, bag->attribute[attribute].bytes, length);
    return BLAS_OK;
}

static int64_t number(const struct bag *bag, int attribute, int64_t otherwise)
{
    int64_t value = 0;
    size_t length = bag->attribute[attribute].length;
    if (length != 4 && length != 8) return otherwise;
    memcpy(&value, bag->attribute[attribute].bytes, length);
    return length == 4 ? (int32_t)value : value;
}

static int bag_destroy(void *handle, uint32_t magic)
{
    struct bag *bag = handle;
    if (!bag || bag->magic != magic) return BLAS_INVALID_VALUE;
    bag->magic = 0;
    free(bag);
    return BLAS_OK;
}

PH_API(size_t, cublasLtGetVersion, (void)) { return (size_t)ph_blas_version(); }
int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
PH_API(int, cublasLtCreate, (void **handle)) { return cublasCreate_v2(handle); }
PH_API(int, cublasLtDestroy, (void *handle)) { return cublasDestroy_v2(handle); }

PH_API(int, cublasLtMatmulDescCreate, (void **descriptor, int compute, int scale))
{
    if (!(*descriptor = bag_create(DESCRIPTOR))) return 3;
    int none = 0,
        plain = 1; /* CUBLAS_OP_N and CUBLASLT_EPILOGUE_DEFAULT: a job can read the defaults */
    bag_set(*descriptor, DESCRIPTOR, DESC_TRANSA, &none, 4);
    bag_set(*descriptor, DESCRIPTOR, DESC_TRANSB, &none, 4);
    bag_set(*descriptor, DESCRIPTOR, DESC_EPILOGUE, &plain, 4);
    bag_set(*descriptor, DESCRIPTOR, DESC_COMPUTE, &compute, 4);
    return bag_set(*descriptor, DESCRIPTOR, 1, &scale, 4);
}
PH_API(int, cublasLtMatmulDescDestroy, (void *descriptor))
{
    return bag_destroy(descriptor, DESCRIPTOR);
}
PH_API(int, cublasLtMatmulDescSetAttribute,
       (void *descriptor, int attribute, const void *value, size_t bytes))
{
    return bag_set(descriptor, DESCRIPTOR, attribute, value, bytes);
}
PH_API(int, cublasLtMatmulDescGetAttribute,
       (void *descriptor, int attribute, void *value, size_t bytes, size_t *written))
{
    return bag_get(descriptor, DESCRIPTOR, attribute, value, bytes, written);
}

PH_API(int, cublasLtMatrixLayoutCreate,
       (void **layout, int type, uint64_t rows, uint64_t columns, int64_t ld))
{
    int one = 1;
    if (!(*layout = bag_create(LAYOUT))) return 3;
    bag_set(*layout, LAYOUT, LAYOUT_TYPE, &type, 4);
    bag_set(*layout, LAYOUT, LAYOUT_ROWS, &rows, 8);
    bag_set(*layout, LAYOUT, LAYOUT_COLS, &columns, 8);
    bag_set(*layout, LAYOUT, LAYOUT_LD, &ld, 8);
    return bag_set(*layout, LAYOUT, LAYOUT_BATCH, &one, 4);
}
PH_API(int, cublasLtMatrixLayoutDestroy, (void *layout)) { return bag_destroy(layout, LAYOUT); }
PH_API(int, cublasLtMatrixLayoutSetAttribute,
       (void *layout, int attribute, const void *value, size_t bytes))
{
    return bag_set(layout, LAYOUT, attribute, value, bytes);
}
PH_API(int, cublasLtMatrixLayoutGetAttribute,
       (void *layout, int attribute, void *value, size_t bytes, size_t *written))
{
    return bag_get(layout, LAYOUT, attribute, value, bytes, written);
}

PH_API(int, cublasLtMatmulPreferenceCreate, (void **preference))
{
    return (*preference = bag_create(PREFERENCE)) ? BLAS_OK : 3;
}
PH_API(int, cublasLtMatmulPreferenceDestroy, (void *preference))
{
    return bag_destroy(preference, PREFERENCE);
}
PH_API(int, cublasLtMatmulPreferenceSetAttribute,
       (void *preference, int attribute, const void *value, size_t bytes))
{
    return bag_set(preference, PREFERENCE, attribute, value, bytes);
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
struct heuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

PH_API(int, cublasLtMatmulAlgoGetHeuristic,
       (void *handle, void *descriptor, void *a, void *b, void *c, void *d, void *preference,
        int wanted, struct heuristic results[], int *count))
{
    if (wanted < 1 || !results || !count) return BLAS_INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->algorithm[0] = 1;
    results->waves = 1;
    *count = 1;
    return BLAS_OK;
}

static struct ph_lt_layout layout_of(const struct bag *bag)
{
    return (struct ph_lt_layout){number(bag, LAYOUT_TYPE, 0), number(bag, LAYOUT_ROWS, 0),
                                 number(bag, LAYOUT_COLS, 0), number(bag, LAYOUT_LD, 0),
                                 number(bag, LAYOUT_BATCH, 1)};
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
PH_API(int, cublasLtMatmul,
       (void *handle, void *descriptor, const void *alpha, const void *a, void *a_layout,
        const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
        void *d_layout, const void *algorithm, void *workspace, size_t bytes, void *stream))
{
    const struct bag *desc = descriptor, *la = a_layout, *lb = b_layout, *lc = c_layout,
                     *ld = d_layout;
    if (!desc || !la || !lb || !lc || !ld || desc->magic != DESCRIPTOR || la->magic != LAYOUT ||
        lb->magic != LAYOUT || ld->magic != LAYOUT)
        return BLAS_INVALID_VALUE;
    struct ph_lt_product product = {number(desc, DESC_TRANSA, 0),
                                    number(desc, DESC_TRANSB, 0),
                                    number(desc, DESC_COMPUTE, COMPUTE_32F),
                                    number(desc, DESC_EPILOGUE, 1),
                                    layout_of(la),
                                    layout_of(lb),
                                    layout_of(lc),
                                    layout_of(ld)};
    struct ph_gemm gemm = ph_lt_fields(&product);
    return ph_gemm(stream, &gemm);
}
