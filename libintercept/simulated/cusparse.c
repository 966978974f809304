/* cusparse.c - what cuSPARSE says of its errors.
 *
 * Why it exists: every other function of it is refused (unsupported_cusparse.gen.c), and PyTorch puts these texts into its exception. */
#define PH_CLASS PH_SIMULATED
#include "../shim.h"

static const struct { const char *name, *text; } errors[] = { /* cusparseStatus_t, from 0 on */
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

PH_EXPORT const char *cusparseGetErrorName(int status);
PH_EXPORT const char *cusparseGetErrorName(int status) { return status >= 0 && status < ERRORS ? errors[status].name : "unrecognized error code"; }
PH_EXPORT const char *cusparseGetErrorString(int status);
PH_EXPORT const char *cusparseGetErrorString(int status) { return status >= 0 && status < ERRORS ? errors[status].text : "unrecognized error code"; }
PH_EXPORT const char *cusparseLtGetErrorName(int status);
PH_EXPORT const char *cusparseLtGetErrorName(int status) { return cusparseGetErrorName(status); }
PH_EXPORT const char *cusparseLtGetErrorString(int status);
PH_EXPORT const char *cusparseLtGetErrorString(int status) { return cusparseGetErrorString(status); }
