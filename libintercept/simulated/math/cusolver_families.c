/* cusolver_families.c - cuSOLVER's functions that exist once for each of the types S, D, C, Z.
 *
 * Why it exists: the older API, which PyTorch still uses for most solvers; one macro for each.
 * Workspaces are in elements, as LAPACK gives them with blocks of 64 columns. */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "simulated/math/cusolver.h"
#include "simulated/memory/memory.h"

enum { BLOCK = 64, S = 0, D = 1, C = 4, Z = 5 }; /* cudaDataType */
#define RUN(type, m, n, k, batch) \
    ph_solver_run(handle, __func__, (const int64_t[]){type, m, n, k, batch}, info)
#define EACH(macro) macro(S) macro(D) macro(C) macro(Z)
/* The argument names of a matrix and of what the job gives the library; addresses and leading
 * dimensions decide no time. */
#define MATRIX(a) const void *a, int ld##a
#define UNUSED(a) (void)a, (void)ld##a

static int work(void *handle, int64_t elements, int *count)
{
    int64_t found = ph_solver_work(handle, elements);
    if (found < 0) return SOLVER_NOT_INITIALIZED;
    /* as the library says of what its int cannot hold */
    if (found > INT32_MAX) return SOLVER_INVALID_VALUE;
    *count = (int)found;
    return SOLVER_OK;
}

/* ---- how large a workspace must be ---- */
#define SIZES(T)                                                                                   \
    PH_EXPORT int cusolverDn##T##potrf_bufferSize(void *handle, int uplo, int n, MATRIX(a),        \
                                                  int *count)                                      \
    {                                                                                              \
        return (void)uplo, UNUSED(a), work(handle, (int64_t)n * BLOCK, count);                     \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##getrf_bufferSize(void *handle, int m, int n, MATRIX(a),           \
                                                  int *count)                                      \
    {                                                                                              \
        return UNUSED(a), work(handle, (int64_t)(m > n ? m : n) * BLOCK, count);                   \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##geqrf_bufferSize(void *handle, int m, int n, MATRIX(a),           \
                                                  int *count)                                      \
    {                                                                                              \
        return (void)m, UNUSED(a), work(handle, (int64_t)n * BLOCK, count);                        \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##sytrf_bufferSize(void *handle, int n, MATRIX(a), int *count)      \
    {                                                                                              \
        return UNUSED(a), work(handle, (int64_t)n * BLOCK, count);                                 \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvd_bufferSize(void *handle, int m, int n, int *count)          \
    {                                                                                              \
        return work(handle, 5ll * (m < n ? m : n) + (m > n ? m : n) + (int64_t)n * BLOCK, count);  \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdj_bufferSize(void *handle, int vectors, int econ, int m,     \
                                                   int n, MATRIX(a), const void *s, MATRIX(u),     \
                                                   MATRIX(v), int *count, void *parameters)        \
    {                                                                                              \
        return (void)vectors, (void)econ, UNUSED(a), (void)s, UNUSED(u), UNUSED(v),                \
               (void)parameters, work(handle, 2ll * m * n, count);                                 \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdjBatched_bufferSize(                                         \
        void *handle, int vectors, int m, int n, MATRIX(a), const void *s, MATRIX(u), MATRIX(v),   \
        int *count, void *parameters, int batch)                                                   \
    {                                                                                              \
        return (void)vectors, UNUSED(a), (void)s, UNUSED(u), UNUSED(v), (void)parameters,          \
               work(handle, 2ll * m * n * batch, count);                                           \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdaStridedBatched_bufferSize(                                  \
        void *handle, int vectors, int rank, int m, int n, MATRIX(a), long long sa, const void *s, \
        long long ss, MATRIX(u), long long su, MATRIX(v), long long sv, int *count, int batch)     \
    {                                                                                              \
        (void)vectors, (void)rank, UNUSED(a), (void)sa, (void)s, (void)ss, UNUSED(u), (void)su,    \
            UNUSED(v), (void)sv;                                                                   \
        return work(handle, (2ll * m * n + (int64_t)n * n) * batch, count);                        \
    }
EACH(SIZES)

/* Real and complex types call these by different names. */
#define NAMED_SIZES(T, gqr, mqr, ev)                                                               \
    PH_EXPORT int cusolverDn##T##gqr##_bufferSize(void *handle, int m, int n, int k, MATRIX(a),    \
                                                  const void *tau, int *count)                     \
    {                                                                                              \
        return (void)m, (void)k, UNUSED(a), (void)tau, work(handle, (int64_t)n * BLOCK, count);    \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##mqr##_bufferSize(void *handle, int side, int trans, int m, int n, \
                                                  int k, MATRIX(a), const void *tau, MATRIX(c),    \
                                                  int *count)                                      \
    {                                                                                              \
        return (void)trans, (void)k, UNUSED(a), (void)tau, UNUSED(c),                              \
               work(handle, (int64_t)(side ? m : n) * BLOCK, count);                               \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##ev##d_bufferSize(void *handle, int vectors, int uplo, int n,      \
                                                  MATRIX(a), const void *w, int *count)            \
    {                                                                                              \
        return (void)uplo, UNUSED(a), (void)w,                                                     \
               work(handle, vectors ? 1 + 6ll * n + 2ll * n * n : 2ll * n + 1, count);             \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##ev##j_bufferSize(void *handle, int vectors, int uplo, int n,      \
                                                  MATRIX(a), const void *w, int *count,            \
                                                  void *parameters)                                \
    {                                                                                              \
        return (void)vectors, (void)uplo, UNUSED(a), (void)w, (void)parameters,                    \
               work(handle, 2ll * n * n, count);                                                   \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##ev##jBatched_bufferSize(void *handle, int vectors, int uplo,      \
                                                         int n, MATRIX(a), const void *w,          \
                                                         int *count, void *parameters, int batch)  \
    {                                                                                              \
        return (void)vectors, (void)uplo, UNUSED(a), (void)w, (void)parameters,                    \
               work(handle, 2ll * n * n * batch, count);                                           \
    }
NAMED_SIZES(S, orgqr, ormqr, syev)
NAMED_SIZES(D, orgqr, ormqr, syev)
NAMED_SIZES(C, ungqr, unmqr, heev) NAMED_SIZES(Z, ungqr, unmqr, heev)

/* ---- solvers ---- */
#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
#define ROOM void *room, int count
#define NO_ROOM (void)room, (void)count
#define SOLVERS(T)                                                                                 \
    PH_EXPORT int cusolverDn##T##potrf(void *handle, int uplo, int n, MATRIX(a), ROOM, int *info)  \
    {                                                                                              \
        return (void)uplo, UNUSED(a), NO_ROOM, RUN(T, n, n, 0, 1);                                 \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##potrs(void *handle, int uplo, int n, int columns, MATRIX(a),      \
                                       MATRIX(b), int *info)                                       \
    {                                                                                              \
        return (void)uplo, UNUSED(a), UNUSED(b), RUN(T, n, n, columns, 1);                         \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##potrfBatched(void *handle, int uplo, int n, MATRIX(a), int *info, \
                                              int batch)                                           \
    {                                                                                              \
        return (void)uplo, UNUSED(a), RUN(T, n, n, 0, batch);                                      \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##potrsBatched(void *handle, int uplo, int n, int columns,          \
                                              MATRIX(a), MATRIX(b), int *info, int batch)          \
    {                                                                                              \
        /* one result code for all of them, unlike the others */                                   \
        int status =                                                                               \
            ((void)uplo, UNUSED(a), UNUSED(b),                                                     \
             ph_solver_run(handle, __func__, (const int64_t[]){T, n, n, columns, batch}, NULL));   \
        if (!status && info) ph_fill(info, 0, sizeof *info);                                       \
        return status;                                                                             \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##getrf(void *handle, int m, int n, MATRIX(a), void *room,          \
                                       int *pivots, int *info)                                     \
    {                                                                                              \
        return UNUSED(a), (void)room, (void)pivots, RUN(T, m, n, 0, 1);                            \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##getrs(void *handle, int trans, int n, int columns, MATRIX(a),     \
                                       const int *pivots, MATRIX(b), int *info)                    \
    {                                                                                              \
        return (void)trans, UNUSED(a), (void)pivots, UNUSED(b), RUN(T, n, n, columns, 1);          \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##geqrf(void *handle, int m, int n, MATRIX(a), void *tau, ROOM,     \
                                       int *info)                                                  \
    {                                                                                              \
        return UNUSED(a), (void)tau, NO_ROOM, RUN(T, m, n, 0, 1);                                  \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##sytrf(void *handle, int uplo, int n, MATRIX(a), int *pivots,      \
                                       ROOM, int *info)                                            \
    {                                                                                              \
        return (void)uplo, UNUSED(a), (void)pivots, NO_ROOM, RUN(T, n, n, 0, 1);                   \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvd(void *handle, signed char left, signed char right, int m,   \
                                       int n, MATRIX(a), void *s, MATRIX(u), MATRIX(v), ROOM,      \
                                       void *real, int *info)                                      \
    {                                                                                              \
        return UNUSED(a), (void)s, UNUSED(u), UNUSED(v), NO_ROOM, (void)real,                      \
               RUN(T, m, n, (left != 'N') + (right != 'N'), 1);                                    \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdj(void *handle, int vectors, int econ, int m, int n,         \
                                        MATRIX(a), void *s, MATRIX(u), MATRIX(v), ROOM, int *info, \
                                        void *parameters)                                          \
    {                                                                                              \
        return (void)econ, UNUSED(a), (void)s, UNUSED(u), UNUSED(v), NO_ROOM, (void)parameters,    \
               RUN(T, m, n, 2 * vectors, 1);                                                       \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdjBatched(void *handle, int vectors, int m, int n, MATRIX(a), \
                                               void *s, MATRIX(u), MATRIX(v), ROOM, int *info,     \
                                               void *parameters, int batch)                        \
    {                                                                                              \
        return UNUSED(a), (void)s, UNUSED(u), UNUSED(v), NO_ROOM, (void)parameters,                \
               RUN(T, m, n, 2 * vectors, batch);                                                   \
    }                                                                                              \
    PH_EXPORT int cusolverDn##T##gesvdaStridedBatched(                                             \
        void *handle, int vectors, int rank, int m, int n, MATRIX(a), long long sa, void *s,       \
        long long ss, MATRIX(u), long long su, MATRIX(v), long long sv, ROOM, int *info,           \
        double *residuals, int batch)                                                              \
    {                                                                                              \
        (void)rank, UNUSED(a), (void)sa, (void)s, (void)ss, UNUSED(u), (void)su, UNUSED(v),        \
            (void)sv, NO_ROOM;                                                                     \
        for (int i = 0; residuals && i < batch; i++) residuals[i] = 0;                             \
        return RUN(T, m, n, 2 * vectors, batch);                                                   \
    }
    EACH(SOLVERS)

#define NAMED_SOLVERS(T, gqr, mqr, ev)                                                        \
    PH_EXPORT int cusolverDn##T##gqr(void *handle, int m, int n, int k, MATRIX(a),            \
                                     const void *tau, ROOM, int *info)                        \
    {                                                                                         \
        return UNUSED(a), (void)tau, NO_ROOM, RUN(T, m, n, k, 1);                             \
    }                                                                                         \
    PH_EXPORT int cusolverDn##T##mqr(void *handle, int side, int trans, int m, int n, int k,  \
                                     MATRIX(a), const void *tau, MATRIX(c), ROOM, int *info)  \
    {                                                                                         \
        return (void)side, (void)trans, UNUSED(a), (void)tau, UNUSED(c), NO_ROOM,             \
               RUN(T, m, n, k, 1);                                                            \
    }                                                                                         \
    PH_EXPORT int cusolverDn##T##ev##d(void *handle, int vectors, int uplo, int n, MATRIX(a), \
                                       void *w, ROOM, int *info)                              \
    {                                                                                         \
        return (void)uplo, UNUSED(a), (void)w, NO_ROOM, RUN(T, n, n, vectors, 1);             \
    }                                                                                         \
    PH_EXPORT int cusolverDn##T##ev##j(void *handle, int vectors, int uplo, int n, MATRIX(a), \
                                       void *w, ROOM, int *info, void *parameters)            \
    {                                                                                         \
        return (void)uplo, UNUSED(a), (void)w, NO_ROOM, (void)parameters,                     \
               RUN(T, n, n, vectors, 1);                                                      \
    }                                                                                         \
    PH_EXPORT int cusolverDn##T##ev##jBatched(void *handle, int vectors, int uplo, int n,     \
                                              MATRIX(a), void *w, ROOM, int *info,            \
                                              void *parameters, int batch)                    \
    {                                                                                         \
        return (void)uplo, UNUSED(a), (void)w, NO_ROOM, (void)parameters,                     \
               RUN(T, n, n, vectors, batch);                                                  \
    }
        NAMED_SOLVERS(S, orgqr, ormqr, syev) NAMED_SOLVERS(D, orgqr, ormqr, syev)
            NAMED_SOLVERS(C, ungqr, unmqr, heev) NAMED_SOLVERS(Z, ungqr, unmqr, heev)
