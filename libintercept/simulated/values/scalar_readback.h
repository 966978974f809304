/* simulated/values/scalar_readback.h - the number that an operator reads back from its own kernel
 * (scalar_readback.c). */
#ifndef PH_SCALAR_READBACK_H
#define PH_SCALAR_READBACK_H
#include <stdbool.h>
#include <stddef.h>

/* a copy to the host reads the number that the values library computed */
bool ph_scalar_readback(void *destination, size_t bytes);
/* whether a copy of this size would read a GPU's number rather than a policy's */
bool ph_scalar_readback_exact(size_t bytes);
#endif
