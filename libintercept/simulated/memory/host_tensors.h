/* simulated/memory/host_tensors.h - large blocks of host memory, and which of their pages hold
 * nothing (host_tensors.c). */
#ifndef PH_HOST_TENSORS_H
#define PH_HOST_TENSORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block of at least PH_HOST_LARGE bytes; NULL: the caller takes ordinary memory. It reads as
 * zero, and only the pages that are written take memory. */
enum { PH_HOST_LARGE = 1 << 20 };
void *ph_host_block(size_t bytes);
void ph_host_block_free(void *pointer);     /* of ph_host_block */
bool ph_host_is_block(const void *pointer); /* whether a pointer lies within any block */

/* Whether a hollow tensor has a page in this range. */
bool ph_host_any_hollow(const void *pointer, size_t bytes);
/* Makes this range of a block zero and gives its pages back. */
void ph_host_clear(void *pointer, size_t bytes);
/* The host really writes these bytes. */
void ph_host_written(const void *pointer, size_t bytes);
/* The process has joined the run. */
void ph_host_joined(void);
#endif
