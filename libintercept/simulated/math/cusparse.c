/* cusparse.c - cuSPARSE's handles and error texts.
 *
 * Why it exists: MAGMA, which PyTorch uses for batches of dense factorisations, creates a handle
 * and never computes with it. Every function that computes is refused (unsupported_cusparse.gen.c),
 * and PyTorch puts these texts into its exception. */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "simulated/math/library_handle.h"

static const struct {
    const char *name, *text;
} errors[] = {
    /* cusparseStatus_t, from 0 on */
    {"CUSPARSE_STATUS_SUCCESS", "success"},
    {"CUSPARSE_STATUS_NOT_INITIALIZED", "initialization error"},
    {"CUSPARSE_STATUS_ALLOC_FAILED", "out of memory"},
    {"CUSPARSE_STATUS_INVALID_VALUE", "invalid value"},
    {"CUSPARSE_STATUS_ARCH_MISMATCH", "architecture mismatch"},
    {"CUSPARSE_STATUS_MAPPING_ERROR", "texture memory mapping error"},
    {"CUSPARSE_STATUS_EXECUTION_FAILED", "kernel launch failure"},
    {"CUSPARSE_STATUS_INTERNAL_ERROR", "internal error"},
    {"CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", "matrix type not supported"},
    {"CUSPARSE_STATUS_ZERO_PIVOT", "zero pivot"},
    {"CUSPARSE_STATUS_NOT_SUPPORTED", "operation not supported"},
    {"CUSPARSE_STATUS_INSUFFICIENT_RESOURCES", "insufficient resources"},
};
enum { ERRORS = sizeof errors / sizeof *errors };

PH_API(const char *, cusparseGetErrorName, (int status))
{
    return status >= 0 && status < ERRORS ? errors[status].name : "unrecognized error code";
}
PH_API(const char *, cusparseGetErrorString, (int status))
{
    return status >= 0 && status < ERRORS ? errors[status].text : "unrecognized error code";
}
PH_API(const char *, cusparseLtGetErrorName, (int status)) { return cusparseGetErrorName(status); }
PH_API(const char *, cusparseLtGetErrorString, (int status))
{
    return cusparseGetErrorString(status);
}

enum {
    SPARSE_OK,
    SPARSE_NOT_INITIALIZED,
    SPARSE_ALLOC_FAILED,
    SPARSE_INVALID_VALUE,
    SPARSE_MAGIC = 0x50485359
};

static struct ph_library_handle *valid(const void *handle)
{
    return ph_library_handle(handle, SPARSE_MAGIC);
}

PH_API(int, cusparseCreate, (void **handle))
{
    if (!handle) return SPARSE_INVALID_VALUE;
    *handle = ph_library_handle_new(SPARSE_MAGIC);
    return *handle ? SPARSE_OK : SPARSE_ALLOC_FAILED;
}
PH_API(int, cusparseDestroy, (void *handle))
{
    if (!valid(handle)) return SPARSE_NOT_INITIALIZED;
    ph_library_handle_free(handle);
    return SPARSE_OK;
}
PH_API(int, cusparseSetStream, (void *handle, void *stream))
{
    if (!valid(handle)) return SPARSE_NOT_INITIALIZED;
    valid(handle)->stream = stream;
    return SPARSE_OK;
}
PH_API(int, cusparseGetStream, (void *handle, void **stream))
{
    if (!valid(handle)) return SPARSE_NOT_INITIALIZED;
    if (!stream) return SPARSE_INVALID_VALUE;
    *stream = valid(handle)->stream;
    return SPARSE_OK;
}
