/* cusolver.c - cuSOLVER's dense solvers as PyTorch's linear algebra uses them. cusolver_families.c
 * has the functions that exist once per type.
 *
 * Why it exists: cuSOLVER links the CUDA runtime statically and cannot run over an emulated driver.
 * Rule: a call is a `call` signature of its type and sizes (docs/wire-protocol.md, kind 4), and
 * reports success to the job. The values library solves small problems on the CPU. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "simulated/math/cusolver.h"
#include "base/log.h"
#include "work/blas.h"
#include "cudagraph/submit.h"
#include "simulated/math/library_handle.h"
#include "simulated/memory/memory.h"
#include <stdlib.h>

enum { SOLVER_MAGIC = 0x50485356 };

static struct ph_library_handle *valid(const void *handle)
{
    return ph_library_handle(handle, SOLVER_MAGIC);
}

int ph_solver_run(void *handle, const char *name, const int64_t numbers[5], int *info)
{
    struct ph_signature signature = {0};
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    for (int i = 1; i < 5; i++)
        if (numbers[i] < 0) return SOLVER_INVALID_VALUE;
    ph_call_signature(&signature, name, numbers, 5);
    ph_submit(valid(handle)->stream, &signature);
    ph_signature_free(&signature);
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
    if (ph_forked()) return SOLVER_NOT_INITIALIZED;
    struct ph_library_handle *fresh = ph_library_handle_new(SOLVER_MAGIC);
    if (!fresh) return SOLVER_ALLOC_FAILED;
    ph_host_call(PH_CALL_MALLOC);
    *handle = fresh;
    return SOLVER_OK;
}
PH_API(int, cusolverDnDestroy, (void *handle))
{
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    ph_library_handle_free(handle);
    return SOLVER_OK;
}
PH_API(int, cusolverDnSetStream, (void *handle, void *stream))
{
    if (!valid(handle)) return SOLVER_NOT_INITIALIZED;
    valid(handle)->stream = stream;
    return SOLVER_OK;
}

/* Tolerances and sweeps of the iterative solvers only affect the accuracy of results that are not
 * computed here. */
#define PARAMETERS(name)                                                       \
    PH_API(int, cusolverDnCreate##name, (void **parameters))                   \
    {                                                                          \
        return (*parameters = calloc(1, 8)) ? SOLVER_OK : SOLVER_ALLOC_FAILED; \
    }                                                                          \
    PH_API(int, cusolverDnDestroy##name, (void *parameters)) { return free(parameters), SOLVER_OK; }
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

/* ---- the 64-bit API: types are arguments; workspaces are counted in bytes, on the device and on
 * the host ---- */
#pragma GCC diagnostic ignored "-Wunused-parameter"
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

#undef PH_CLASS
#define PH_CLASS PH_SIMULATED
PH_API(int, cusolverDnXpotrf_bufferSize,
       (void *handle, void *parameters, int uplo, int64_t n, int type, const void *a, int64_t lda,
        int compute, size_t *device, size_t *host))
{
    return sizes(handle, n * 64, type, device, host);
}
PH_API(int, cusolverDnXgeqrf_bufferSize,
       (void *handle, void *parameters, int64_t m, int64_t n, int type, const void *a, int64_t lda,
        int tau_type, const void *tau, int compute, size_t *device, size_t *host))
{
    return sizes(handle, n * 64, type, device, host);
}
PH_API(int, cusolverDnXsyevd_bufferSize,
       (void *handle, void *parameters, int vectors, int uplo, int64_t n, int type, const void *a,
        int64_t lda, int value_type, const void *w, int compute, size_t *device, size_t *host))
{
    return sizes(handle, vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1, type, device, host);
}
PH_API(int, cusolverDnXsyevBatched_bufferSize,
       (void *handle, void *parameters, int vectors, int uplo, int64_t n, int type, const void *a,
        int64_t lda, int value_type, const void *w, int compute, size_t *device, size_t *host,
        int64_t batch))
{
    return sizes(handle, (vectors ? 1 + 6 * n + 2 * n * n : 2 * n + 1) * batch, type, device, host);
}
PH_API(int, cusolverDnXgeev_bufferSize,
       (void *handle, void *parameters, int left, int right, int64_t n, int type, const void *a,
        int64_t lda, int value_type, const void *w, int left_type, const void *vl, int64_t ldvl,
        int right_type, const void *vr, int64_t ldvr, int compute, size_t *device, size_t *host))
{
    return sizes(handle, n * n + 4 * n, type, device, host);
}
PH_API(int, cusolverDnXsytrs_bufferSize,
       (void *handle, int uplo, int64_t n, int64_t columns, int type, const void *a, int64_t lda,
        const int64_t *pivots, int b_type, void *b, int64_t ldb, size_t *device, size_t *host))
{
    return sizes(handle, n + columns, type, device, host);
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
PH_API(int, cusolverDnXpotrf,
       (void *handle, void *parameters, int uplo, int64_t n, int type, void *a, int64_t lda,
        int compute, ROOM, int *info))
{
    return RUN(type, n, n, 0, 1);
}
PH_API(int, cusolverDnXpotrs,
       (void *handle, void *parameters, int uplo, int64_t n, int64_t columns, int type,
        const void *a, int64_t lda, int b_type, void *b, int64_t ldb, int *info))
{
    return RUN(type, n, n, columns, 1);
}
PH_API(int, cusolverDnXgeqrf,
       (void *handle, void *parameters, int64_t m, int64_t n, int type, void *a, int64_t lda,
        int tau_type, void *tau, int compute, ROOM, int *info))
{
    return RUN(type, m, n, 0, 1);
}
PH_API(int, cusolverDnXsyevd,
       (void *handle, void *parameters, int vectors, int uplo, int64_t n, int type, void *a,
        int64_t lda, int value_type, void *w, int compute, ROOM, int *info))
{
    return RUN(type, n, n, vectors, 1);
}
PH_API(int, cusolverDnXsyevBatched,
       (void *handle, void *parameters, int vectors, int uplo, int64_t n, int type, void *a,
        int64_t lda, int value_type, void *w, int compute, ROOM, int *info, int64_t batch))
{
    return RUN(type, n, n, vectors, batch);
}
PH_API(int, cusolverDnXgeev,
       (void *handle, void *parameters, int left, int right, int64_t n, int type, void *a,
        int64_t lda, int value_type, void *w, int left_type, void *vl, int64_t ldvl, int right_type,
        void *vr, int64_t ldvr, int compute, ROOM, int *info))
{
    return RUN(type, n, n, left + right, 1);
}
PH_API(int, cusolverDnXsytrs,
       (void *handle, int uplo, int64_t n, int64_t columns, int type, const void *a, int64_t lda,
        const int64_t *pivots, int b_type, void *b, int64_t ldb, ROOM, int *info))
{
    return RUN(type, n, n, columns, 1);
}
