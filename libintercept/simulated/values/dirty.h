/* dirty.h - a bitmap of the device memory that was ever written. See dirty.c. */
#ifndef PH_DIRTY_H
#define PH_DIRTY_H
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the window are about to be written. Every writer on the CPU calls this. */
void ph_mark_dirty(const void *pointer, size_t bytes);
/* Whether nothing was ever written there. Such memory is zero, and reading it would only cost page
 * faults. */
bool ph_is_clean(const void *pointer, size_t bytes);
/* A copy or a fill has brought values to a tensor above the limit for computed values. */
void ph_keep_copied(const void *pointer);
/* Zeroes device memory. Nearly free where nothing was ever written. */
void ph_zero(void *pointer, size_t bytes);
/* The same for memory that is overwritten as a whole; its pending results are dropped. */
void ph_discard(void *pointer, size_t bytes);
/* payload.c: drops pending results that lie within these bytes. */
void ph_payload_drop(const void *pointer, size_t bytes);
#endif
