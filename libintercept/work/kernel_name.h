/* work/kernel_name.h - names of kernels that hold across builds (work/kernel_name.c). */
#ifndef PH_KERNELNAME_H
#define PH_KERNELNAME_H
#include <stdbool.h>
#include <stddef.h>

enum { PH_KERNEL_NAME = 8192 }; /* bytes that hold any name of PyTorch's */

/* The name without build hashes: `name` itself when it holds none or does not fit into `room`
 * bytes, else `buffer`, filled. */
const char *ph_kernel_name_portable(const char *name, char *buffer, size_t room);
#endif
