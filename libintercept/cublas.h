/* cublas.h - the handle that cuBLAS and cuBLASLt share, and how a matrix product becomes a signature. */
#ifndef PH_CUBLAS_H
#define PH_CUBLAS_H
#include "core.h"

enum { BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, R_16BF = 14 };             /* cudaDataType */
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_TF32 = 77 };    /* cublasComputeType_t */

struct ph_gemm { /* fields of signature kind 1, in its order */
    int64_t api, transa, transb, m, n, k, batch, atype, btype, ctype, dtype, compute, epilogue, lda, ldb, ldc;
};
int ph_gemm(void *stream, const struct ph_gemm *gemm); /* a cublasStatus_t */
#endif
