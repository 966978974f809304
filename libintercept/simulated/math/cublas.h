/* simulated/math/cublas.h - shared by cuBLAS and cuBLASLt. */
#ifndef PH_SIMULATED_CUBLAS_H
#define PH_SIMULATED_CUBLAS_H
#include "work/blas.h"

int ph_gemm(void *stream, const struct ph_gemm *gemm); /* returns a cublasStatus_t */
#endif
