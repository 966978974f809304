/* simulated/cuda/kernels.h - registered and loaded kernels (simulated/cuda/kernels.c). */
#ifndef PH_SIMULATED_KERNELS_H
#define PH_SIMULATED_KERNELS_H
#include "work/signature.h"
#include <stddef.h>

struct ph_kernel; /* stands for cudaKernel_t, CUfunction and host functions */
struct ph_kernel *ph_kernel_resolve(const void *handle); /* NULL: not a kernel */
struct ph_kernel *ph_kernel_make(const char *name);      /* for a function of a loaded module */
int ph_launch(struct ph_kernel *kernel, const struct ph_launch *launch, void **arguments);
struct ph_kernel_facts *ph_kernel_facts(struct ph_kernel *kernel);
void ph_kernel_set_facts(struct ph_kernel *kernel, const struct ph_kernel_facts *facts);
int ph_occupancy(struct ph_kernel *kernel, int block_threads, size_t dynamic_shared);
const char *ph_kernel_name(const struct ph_kernel *kernel);
#endif
