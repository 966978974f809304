/* simulated/math/cublas.h - what cuBLAS and cuBLASLt share. */
#ifndef PH_SIMULATED_CUBLAS_H
#define PH_SIMULATED_CUBLAS_H
#include "work/blas.h"

int ph_gemm(void *stream, const struct ph_gemm *gemm); /* a cublasStatus_t */
#endif
