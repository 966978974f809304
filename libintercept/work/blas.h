/* work/blas.h - how a call of cuBLAS or cuBLASLt becomes a signature (work/blas_signature.c). */
#ifndef PH_CUBLAS_H
#define PH_CUBLAS_H
#include "work/signature.h"
#include <stdbool.h>
#include <stdint.h>

enum { BLAS_OK = 0, BLAS_NOT_INITIALIZED = 1, BLAS_INVALID_VALUE = 7, BLAS_NOT_SUPPORTED = 15 };
/* cudaDataType */
enum { R_32F = 0, R_64F = 1, R_16F = 2, C_32F = 4, C_64F = 5, R_16BF = 14 };
/* cublasComputeType_t */
enum { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_TF32 = 77 };

struct ph_gemm { /* fields of signature kind 1, in its order */
    int64_t api, transa, transb, m, n, k, batch, atype, btype, ctype, dtype, compute, epilogue, lda,
        ldb, ldc;
};

struct ph_product { /* a cuBLAS matrix product in the API's arguments */
    int transa, transb;
    int64_t m, n, k, batch;
    int atype, btype, ctype, compute;
    int64_t lda, ldb, ldc;
};
struct ph_lt_layout { /* of a cublasLtMatrixLayout_t */
    int64_t type, rows, columns, ld, batch;
};
struct ph_lt_product { /* a cublasLtMatmul */
    int64_t transa, transb, compute, epilogue;
    struct ph_lt_layout a, b, c, d;
};
/* cublasLtMatmulDescAttributes_t */
enum { DESC_COMPUTE = 0, DESC_TRANSA = 3, DESC_TRANSB = 4, DESC_EPILOGUE = 7 };
/* cublasLtMatrixLayoutAttribute_t */
enum { LAYOUT_TYPE = 0, LAYOUT_ROWS = 2, LAYOUT_COLS = 3, LAYOUT_LD = 4, LAYOUT_BATCH = 5 };
struct ph_gemm ph_gemm_fields(const struct ph_product *product, int math_mode);
struct ph_gemm ph_lt_fields(const struct ph_lt_product *product);
/* Builds `signature` anew. False: nothing is launched, or an extent is negative. */
bool ph_gemm_signature(struct ph_signature *signature, const struct ph_gemm *gemm);
/* The signature of any other library call: its name and its numbers. */
void ph_call_signature(struct ph_signature *signature, const char *name, const int64_t *numbers,
                       uint32_t count);
#endif
