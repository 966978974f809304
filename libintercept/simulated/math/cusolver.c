/* cusolver.c - cuSOLVER's dense solvers, as PyTorch's linear algebra uses them; cusolver_families.c
 * has those of one form in four types.
 *
 * Why it exists: cuSOLVER links the CUDA runtime statically and cannot run over an emulated driver.
 * Rule: a call is a `call` signature of its type and sizes (docs/wire-protocol.md, kind 4), and
 * reports success to the job; small matrices get their values from the CPU (libintercept/values).
 */
#define PH_CLASS PH_SIMULATED
#include "simulated/math/cusolver.h"
#include "base/log.h"
#include "time/host_clock.h"
#include "work/blas.h"
#include "cudagraph/submit.h"
#include "simulated/memory/memory.h"
#include <stdlib.h>

enum { SOLVER_MAGIC = 0x50485356 };
struct handle {
    uint32_t magic;
    void *stream;
};
static struct handle *valid(void *handle)
{
    return handle && ((struct handle *)handle)->magic == SOLVER_MAGIC ? handle : NULL;
}

int ph_solver_run(void *handle, const char *name, const int64_t numbers[5], int *info)
{
    struct ph_pack signature = {0};
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    for (int i = 1; i < 5; i++)
        if (numbers[i] < 0) return SOLVER_INVALID_VALUE;
    ph_blas_call_pack(&signature, name, numbers, 5);
    ph_submit(valid(handle)->stream, &signature);
    ph_pack_free(&signature);
    if (!info) return SOLVER_OK;
    ph_host_pause();
    ph_fill(info, 0, (size_t)numbers[4] * sizeof *info);
    ph_host_resume();
    return SOLVER_OK;
}

int64_t ph_solver_work(void *handle, int64_t elements)
{
    if (!valid(handle)) return -1;
    ph_warn("the workspaces of cuSOLVER are not known and taken as LAPACK's are: peak memory may "
            "differ");
    return elements > 0 ? elements : 1;
}

/* ---- handles and parameters ---- */
PH_API(int, cusolverDnCreate, (void **handle))
{
    struct handle *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return SOLVER_ALLOC_FAILED;
    fresh->magic = SOLVER_MAGIC;
    ph_host_call(PH_CALL_MALLOC);
    *handle = fresh;
    return SOLVER_OK;
}
PH_API(int, cusolverDnDestroy, (void *handle))
{
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    valid(handle)->magic = 0;
    free(handle);
    return SOLVER_OK;
}
PH_API(int, cusolverDnSetStream, (void *handle, void *stream))
{
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    valid(handle)->stream = stream;
    return SOLVER_OK;
}

/* Tolerances and sweeps of the iterative solvers decide how exact a result is that nobody computes
 * here. */
#define PARAMETERS(name)                                                       \
    PH_EXPORT int cusolverDnCreate##name(void **parameters);                   \
    PH_EXPORT int cusolverDnCreate##name(void **parameters)                    \
    {                                                                          \
        return (*parameters = calloc(1, 8)) ? SOLVER_OK : SOLVER_ALLOC_FAILED; \
    }                                                                          \
    PH_EXPORT int cusolverDnDestroy##name(void *parameters);                   \
    PH_EXPORT int cusolverDnDestroy##name(void *parameters) { return free(parameters), SOLVER_OK; }
PARAMETERS(Params)
PARAMETERS(GesvdjInfo)
PARAMETERS(SyevjInfo)
#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cusolverDnXgesvdjSetTolerance, (void *parameters, double tolerance))
{
    return (void)tolerance, parameters ? SOLVER_OK : SOLVER_INVALID_VALUE;
}
PH_API(int, cusolverDnXgesvdjSetMaxSweeps, (void *parameters, int sweeps))
{
    return (void)sweeps, parameters ? SOLVER_OK : SOLVER_INVALID_VALUE;
}
PH_API(int, cusolverDnXgesvdjSetSortEig, (void *parameters, int sort))
{
    return (void)sort, parameters ? SOLVER_OK : SOLVER_INVALID_VALUE;
}

/* ---- the 64-bit API: types are arguments, workspaces are bytes on the device and on the host ----
 */
static int bytes_of(int type)
{
    return type == C_64F ? 16 : type == C_32F || type == R_64F ? 8 : 4;
}

static int sizes(void *handle, int64_t elements, int type, size_t *device, size_t *host)
{
    int64_t work = ph_solver_work(handle, elements);
    if (work < 0) return SOLVER_NOT_INITIALIZED;
    *device = (size_t)work * (size_t)bytes_of(type);
    *host = 0;
    return SOLVER_OK;
}
#define RUN(type, m, n, k, batch) \
    ph_solver_run(handle, __func__, (const int64_t[]){type, m, n, k, batch}, info)
#define ROOM void *device, size_t device_bytes, void *host, size_t host_bytes
#define UNUSED_ROOM (void)device, (void)device_bytes, (void)host, (void)host_bytes

#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
PH_EXPORT int cusolverDnXpotrf_bufferSize(void *handle, void *parameters, int uplo, int64_t n,
                                          int type, const void *a, int64_t lda, int compute,
                                          size_t *device, size_t *host)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)compute;
    return sizes(handle, n * 64, type, device, host);
}
PH_EXPORT int cusolverDnXgeqrf_bufferSize(void *handle, void *parameters, int64_t m, int64_t n,
                                          int type, const void *a, int64_t lda, int tau_type,
                                          const void *tau, int compute, size_t *device,
                                          size_t *host)
{
    (void)parameters, (void)m, (void)a, (void)lda, (void)tau_type, (void)tau, (void)compute;
    return sizes(handle, n * 64, type, device, host);
}
PH_EXPORT int cusolverDnXsyevd_bufferSize(void *handle, void *parameters, int vectors, int uplo,
                                          int64_t n, int type, const void *a, int64_t lda,
                                          int value_type, const void *w, int compute,
                                          size_t *device, size_t *host)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)value_type, (void)w, (void)compute;
    return sizes(handle, vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1, type, device, host);
}
PH_EXPORT int cusolverDnXsyevBatched_bufferSize(void *handle, void *parameters, int vectors,
                                                int uplo, int64_t n, int type, const void *a,
                                                int64_t lda, int value_type, const void *w,
                                                int compute, size_t *device, size_t *host,
                                                int64_t batch)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)value_type, (void)w, (void)compute;
    return sizes(handle, (vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1) * batch, type, device, host);
}
PH_EXPORT int cusolverDnXgeev_bufferSize(void *handle, void *parameters, int left, int right,
                                         int64_t n, int type, const void *a, int64_t lda,
                                         int value_type, const void *w, int left_type,
                                         const void *vl, int64_t ldvl, int right_type,
                                         const void *vr, int64_t ldvr, int compute, size_t *device,
                                         size_t *host)
{
    (void)parameters, (void)left, (void)right, (void)a, (void)lda, (void)value_type, (void)w,
        (void)left_type, (void)vl, (void)ldvl, (void)right_type, (void)vr, (void)ldvr,
        (void)compute;
    return sizes(handle, n * n + 4 * n, type, device, host);
}
PH_EXPORT int cusolverDnXsytrs_bufferSize(void *handle, int uplo, int64_t n, int64_t columns,
                                          int type, const void *a, int64_t lda,
                                          const int64_t *pivots, int b_type, void *b, int64_t ldb,
                                          size_t *device, size_t *host)
{
    (void)uplo, (void)n, (void)a, (void)lda, (void)pivots, (void)b_type, (void)b, (void)ldb;
    return sizes(handle, n + columns, type, device, host);
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
PH_EXPORT int cusolverDnXpotrf(void *handle, void *parameters, int uplo, int64_t n, int type,
                               void *a, int64_t lda, int compute, ROOM, int *info)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)compute, UNUSED_ROOM;
    return RUN(type, n, n, 0, 1);
}
PH_EXPORT int cusolverDnXpotrs(void *handle, void *parameters, int uplo, int64_t n, int64_t columns,
                               int type, const void *a, int64_t lda, int b_type, void *b,
                               int64_t ldb, int *info)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)b_type, (void)b, (void)ldb;
    return RUN(type, n, n, columns, 1);
}
PH_EXPORT int cusolverDnXgeqrf(void *handle, void *parameters, int64_t m, int64_t n, int type,
                               void *a, int64_t lda, int tau_type, void *tau, int compute, ROOM,
                               int *info)
{
    (void)parameters, (void)a, (void)lda, (void)tau_type, (void)tau, (void)compute, UNUSED_ROOM;
    return RUN(type, m, n, 0, 1);
}
PH_EXPORT int cusolverDnXsyevd(void *handle, void *parameters, int vectors, int uplo, int64_t n,
                               int type, void *a, int64_t lda, int value_type, void *w, int compute,
                               ROOM, int *info)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)value_type, (void)w, (void)compute,
        UNUSED_ROOM;
    return RUN(type, n, n, vectors, 1);
}
PH_EXPORT int cusolverDnXsyevBatched(void *handle, void *parameters, int vectors, int uplo,
                                     int64_t n, int type, void *a, int64_t lda, int value_type,
                                     void *w, int compute, ROOM, int *info, int64_t batch)
{
    (void)parameters, (void)uplo, (void)a, (void)lda, (void)value_type, (void)w, (void)compute,
        UNUSED_ROOM;
    return RUN(type, n, n, vectors, batch);
}
PH_EXPORT int cusolverDnXgeev(void *handle, void *parameters, int left, int right, int64_t n,
                              int type, void *a, int64_t lda, int value_type, void *w,
                              int left_type, void *vl, int64_t ldvl, int right_type, void *vr,
                              int64_t ldvr, int compute, ROOM, int *info)
{
    (void)parameters, (void)a, (void)lda, (void)value_type, (void)w, (void)left_type, (void)vl,
        (void)ldvl, (void)right_type, (void)vr, (void)ldvr, (void)compute, UNUSED_ROOM;
    return RUN(type, n, n, left + right, 1);
}
PH_EXPORT int cusolverDnXsytrs(void *handle, int uplo, int64_t n, int64_t columns, int type,
                               const void *a, int64_t lda, const int64_t *pivots, int b_type,
                               void *b, int64_t ldb, ROOM, int *info)
{
    (void)uplo, (void)a, (void)lda, (void)pivots, (void)b_type, (void)b, (void)ldb, UNUSED_ROOM;
    return RUN(type, n, n, columns, 1);
}
