/* work/kernel_name.h - kernel names that stay the same across builds (work/kernel_name.c). */
#ifndef PH_KERNELNAME_H
#define PH_KERNELNAME_H
#include <stdbool.h>
#include <stddef.h>

enum { PH_KERNEL_NAME = 8192 }; /* bytes; enough for any kernel name of PyTorch */

/* Returns the name without build hashes. The result is `name` itself if it has no hash or does not
 * fit into `room` bytes. Otherwise it is `buffer`, which then holds the portable name. */
const char *ph_kernel_name_portable(const char *name, char *buffer, size_t room);
#endif
