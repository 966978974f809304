/* cusolver.h - shared by the two files of cuSOLVER. */
#ifndef PH_CUSOLVER_H
#define PH_CUSOLVER_H
#include <stdint.h>

/* cusolverStatus_t */
enum {
    SOLVER_OK = 0,
    SOLVER_NOT_INITIALIZED = 1,
    SOLVER_ALLOC_FAILED = 2,
    SOLVER_INVALID_VALUE = 3
};

/* One solver call. The numbers are its cudaDataType, rows, columns, a further number that its work
 * depends on (right-hand sides, reflectors, or whether vectors are wanted), and the number of
 * matrices. `info` holds a result code on the device for each matrix; it may be NULL. Returns a
 * cusolverStatus_t. */
int ph_solver_run(void *handle, const char *name, const int64_t numbers[5], int *info);
/* the size of a workspace of so many elements, with a warning; -1: not a handle */
int64_t ph_solver_work(void *handle, int64_t elements);
#endif
