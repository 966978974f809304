/* cusolver_families.c - cuSOLVER's functions that exist once for each of the types S, D, C, Z.
 *
 * Why it exists: PyTorch still uses the older API, with the type in the name, for most solvers. One
 * line defines the four functions of a family. Workspaces are counted in elements and are as large
 * as LAPACK's with blocks of 64 columns. */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "simulated/math/cusolver.h"
#include "simulated/memory/memory.h"

/* addresses and leading dimensions do not affect the time */
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { BLOCK = 64, S = 0, D = 1, C = 4, Z = 5 }; /* cudaDataType */

/* A family has one name, or one for real and one for complex types. */
#define FAMILY(MACRO, real, complex, ...) \
    MACRO(S, real, __VA_ARGS__)           \
    MACRO(D, real, __VA_ARGS__)           \
    MACRO(C, complex, __VA_ARGS__)        \
    MACRO(Z, complex, __VA_ARGS__)
#define MATRIX(a) const void *a, int ld##a
#define ROOM void *room, int count

/* ---- workspace sizes ---- */
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int work(void *handle, int64_t elements, int *count)
{
    int64_t found = ph_solver_work(handle, elements);
    if (found < 0) return SOLVER_NOT_INITIALIZED;
    /* the library's own code for a size that its int cannot hold */
    if (found > INT32_MAX) return SOLVER_INVALID_VALUE;
    *count = (int)found;
    return SOLVER_OK;
}

#define SIZE_OF(T, name, parameters, elements)                \
    PH_API(int, cusolverDn##T##name##_bufferSize, parameters) \
    {                                                         \
        return work(handle, elements, count);                 \
    }
#define SIZES(real, complex, ...) FAMILY(SIZE_OF, real, complex, __VA_ARGS__)

SIZES(potrf, potrf, (void *handle, int uplo, int n, MATRIX(a), int *count), BLOCK *(int64_t)n)
SIZES(getrf, getrf, (void *handle, int m, int n, MATRIX(a), int *count), most(m, n) * BLOCK)
SIZES(geqrf, geqrf, (void *handle, int m, int n, MATRIX(a), int *count), BLOCK *(int64_t)n)
SIZES(sytrf, sytrf, (void *handle, int n, MATRIX(a), int *count), BLOCK *(int64_t)n)
SIZES(gesvd, gesvd, (void *handle, int m, int n, int *count),
      5 * least(m, n) + most(m, n) + BLOCK * (int64_t)n)
SIZES(gesvdj, gesvdj,
      (void *handle, int vectors, int econ, int m, int n, MATRIX(a), const void *s, MATRIX(u),
       MATRIX(v), int *count, void *parameters),
      2ll * m * n)
SIZES(gesvdjBatched, gesvdjBatched,
      (void *handle, int vectors, int m, int n, MATRIX(a), const void *s, MATRIX(u), MATRIX(v),
       int *count, void *parameters, int batch),
      2ll * m * n * batch)
SIZES(gesvdaStridedBatched, gesvdaStridedBatched,
      (void *handle, int vectors, int rank, int m, int n, MATRIX(a), long long sa, const void *s,
       long long ss, MATRIX(u), long long su, MATRIX(v), long long sv, int *count, int batch),
      (2ll * m * n + (int64_t)n * n) * batch)
SIZES(orgqr, ungqr, (void *handle, int m, int n, int k, MATRIX(a), const void *tau, int *count),
      BLOCK *(int64_t)n)
SIZES(ormqr, unmqr,
      (void *handle, int side, int trans, int m, int n, int k, MATRIX(a), const void *tau,
       MATRIX(c), int *count),
      BLOCK *(int64_t)(side ? m : n))
SIZES(syevd, heevd,
      (void *handle, int vectors, int uplo, int n, MATRIX(a), const void *w, int *count),
      vectors ? 1 + 6ll * n + 2ll * n * n : 2ll * n + 1)
SIZES(syevj, heevj,
      (void *handle, int vectors, int uplo, int n, MATRIX(a), const void *w, int *count,
       void *parameters),
      2ll * n * n)
SIZES(syevjBatched, heevjBatched,
      (void *handle, int vectors, int uplo, int n, MATRIX(a), const void *w, int *count,
       void *parameters, int batch),
      2ll * n * n * batch)

/* ---- solvers ---- */
#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED

/* rows, columns, further number, batch: as ph_solver_run takes them */
#define SOLVER_OF(T, name, parameters, ...)                                              \
    PH_API(int, cusolverDn##T##name, parameters)                                         \
    {                                                                                    \
        return ph_solver_run(handle, __func__, (const int64_t[]){T, __VA_ARGS__}, info); \
    }
#define SOLVERS(real, complex, ...) FAMILY(SOLVER_OF, real, complex, __VA_ARGS__)

SOLVERS(potrf, potrf, (void *handle, int uplo, int n, MATRIX(a), ROOM, int *info), n, n, 0, 1)
SOLVERS(potrs, potrs, (void *handle, int uplo, int n, int columns, MATRIX(a), MATRIX(b), int *info),
        n, n, columns, 1)
SOLVERS(potrfBatched, potrfBatched,
        (void *handle, int uplo, int n, MATRIX(a), int *info, int batch), n, n, 0, batch)
SOLVERS(getrf, getrf, (void *handle, int m, int n, MATRIX(a), void *room, int *pivots, int *info),
        m, n, 0, 1)
SOLVERS(getrs, getrs,
        (void *handle, int trans, int n, int columns, MATRIX(a), const int *pivots, MATRIX(b),
         int *info),
        n, n, columns, 1)
SOLVERS(geqrf, geqrf, (void *handle, int m, int n, MATRIX(a), void *tau, ROOM, int *info), m, n, 0,
        1)
SOLVERS(sytrf, sytrf, (void *handle, int uplo, int n, MATRIX(a), int *pivots, ROOM, int *info), n,
        n, 0, 1)
SOLVERS(gesvd, gesvd,
        (void *handle, signed char left, signed char right, int m, int n, MATRIX(a), void *s,
         MATRIX(u), MATRIX(v), ROOM, void *real, int *info),
        m, n, (left != 'N') + (right != 'N'), 1)
SOLVERS(gesvdj, gesvdj,
        (void *handle, int vectors, int econ, int m, int n, MATRIX(a), void *s, MATRIX(u),
         MATRIX(v), ROOM, int *info, void *parameters),
        m, n, 2 * vectors, 1)
SOLVERS(gesvdjBatched, gesvdjBatched,
        (void *handle, int vectors, int m, int n, MATRIX(a), void *s, MATRIX(u), MATRIX(v), ROOM,
         int *info, void *parameters, int batch),
        m, n, 2 * vectors, batch)
SOLVERS(orgqr, ungqr,
        (void *handle, int m, int n, int k, MATRIX(a), const void *tau, ROOM, int *info), m, n, k,
        1)
SOLVERS(ormqr, unmqr,
        (void *handle, int side, int trans, int m, int n, int k, MATRIX(a), const void *tau,
         MATRIX(c), ROOM, int *info),
        m, n, k, 1)
SOLVERS(syevd, heevd,
        (void *handle, int vectors, int uplo, int n, MATRIX(a), void *w, ROOM, int *info), n, n,
        vectors, 1)
SOLVERS(syevj, heevj,
        (void *handle, int vectors, int uplo, int n, MATRIX(a), void *w, ROOM, int *info,
         void *parameters),
        n, n, vectors, 1)
SOLVERS(syevjBatched, heevjBatched,
        (void *handle, int vectors, int uplo, int n, MATRIX(a), void *w, ROOM, int *info,
         void *parameters, int batch),
        n, n, vectors, batch)

/* one result code for the whole batch */
#define POTRS_BATCHED(T, name, parameters)                                                     \
    PH_API(int, cusolverDn##T##name, parameters)                                               \
    {                                                                                          \
        int status =                                                                           \
            ph_solver_run(handle, __func__, (const int64_t[]){T, n, n, columns, batch}, NULL); \
        if (!status && info) ph_fill(info, 0, sizeof *info);                                   \
        return status;                                                                         \
    }
FAMILY(POTRS_BATCHED, potrsBatched, potrsBatched,
       (void *handle, int uplo, int n, int columns, MATRIX(a), MATRIX(b), int *info, int batch))

#define GESVDA(T, name, parameters)                                                            \
    PH_API(int, cusolverDn##T##name, parameters)                                               \
    {                                                                                          \
        for (int i = 0; residuals && i < batch; i++) residuals[i] = 0;                         \
        return ph_solver_run(handle, __func__, (const int64_t[]){T, m, n, 2 * vectors, batch}, \
                             info);                                                            \
    }
FAMILY(GESVDA, gesvdaStridedBatched, gesvdaStridedBatched,
       (void *handle, int vectors, int rank, int m, int n, MATRIX(a), long long sa, void *s,
        long long ss, MATRIX(u), long long su, MATRIX(v), long long sv, ROOM, int *info,
        double *residuals, int batch))
