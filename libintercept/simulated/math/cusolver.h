/* cusolver.h - what the two files of cuSOLVER share. */
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

/* One solver call: numbers are its cudaDataType, rows, columns, what else its work depends on
 * (right-hand sides, reflectors, or whether vectors are wanted), and matrices. `info` (may be
 * NULL): the result codes on the device, one for each matrix. A cusolverStatus_t. */
int ph_solver_run(void *handle, const char *name, const int64_t numbers[5], int *info);
/* a workspace of so many elements, with a warning; -1: no handle */
int64_t ph_solver_work(void *handle, int64_t elements);
#endif
