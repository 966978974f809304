/* blas_signature.c - the signatures of cuBLAS and cuBLASLt calls.
 *
 * Why it exists: a leader must measure exactly what a simulated rank asks for, byte for byte. So
 * both make signatures here: simulated/math/cublas.c and simulated/math/cublaslt.c from their own
 * handles and descriptors, leader/gpu/blas.c from the real ones. */
#include "work/blas.h"

bool ph_gemm_signature(struct ph_signature *signature, const struct ph_gemm *gemm)
{
    enum { FIELDS = sizeof *gemm / sizeof gemm->api };
    const int64_t *field = &gemm->api;
    if (gemm->m <= 0 || gemm->n <= 0 || gemm->k < 0 || gemm->batch <= 0) return false;
    ph_signature_begin(signature, PH_SIGNATURE_GEMM, FIELDS);
    for (size_t i = 0; i < FIELDS; i++) ph_pack_int(&signature->fields, field[i]);
    ph_signature_end(signature);
    return true;
}

void ph_call_signature(struct ph_signature *signature, const char *name, const int64_t *numbers,
                       uint32_t count)
{
    ph_signature_begin(signature, PH_SIGNATURE_CALL, 2);
    ph_pack_str(&signature->fields, name);
    ph_pack_array(&signature->fields, count);
    for (uint32_t i = 0; i < count; i++) ph_pack_int(&signature->fields, numbers[i]);
    ph_signature_end(signature);
}

struct ph_gemm ph_gemm_fields(const struct ph_product *product, int math_mode)
{
    /* cublasMath_t: CUBLAS_TF32_TENSOR_OP_MATH; higher bits are flags */
    enum { TF32_MODE = 3, MODE_MASK = 15 };
    const struct ph_product *p = product;
    int compute = p->compute;
    if (compute == COMPUTE_32F && p->atype == R_32F && (math_mode & MODE_MASK) == TF32_MODE)
        compute = COMPUTE_32F_TF32;
    return (struct ph_gemm){0,        p->transa, p->transb, p->m,     p->n,     p->k,
                            p->batch, p->atype,  p->btype,  p->ctype, p->ctype, compute,
                            1,        p->lda,    p->ldb,    p->ldc};
}

struct ph_gemm ph_lt_fields(const struct ph_lt_product *product)
{
    const struct ph_lt_product *p = product;
    return (struct ph_gemm){.api = 1,
                            .transa = p->transa,
                            .transb = p->transb,
                            .m = p->d.rows,
                            .n = p->d.columns,
                            .k = p->transa ? p->a.rows : p->a.columns,
                            .batch = p->d.batch,
                            .atype = p->a.type,
                            .btype = p->b.type,
                            .ctype = p->c.type,
                            .dtype = p->d.type,
                            .compute = p->compute,
                            .epilogue = p->epilogue,
                            .lda = p->a.ld,
                            .ldb = p->b.ld,
                            .ldc = p->d.ld};
}
