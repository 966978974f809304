/* random.h - random numbers for buffers that only another rank could have filled. See random.c. */
#ifndef PH_RANDOM_H
#define PH_RANDOM_H
#include <stddef.h>

/* Fills device memory with numbers of NCCL's type `dtype`, the same in every process, by copies on
 * the real `stream`. Exits with one line when the GPU has no room for the table of 8 MiB that each
 * type needs. */
void ph_random_fill(void *pointer, size_t bytes, int dtype, void *stream);
/* The numbers themselves: `bytes` (a multiple of the type's size) into host memory at `into`. */
void ph_random_numbers(void *into, size_t bytes, int dtype);
#endif
