/* stale.h - which device memory holds values, and how tensors that are too large for values lose
 * them. See stale.c. */
#ifndef PH_STALE_H
#define PH_STALE_H
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the window are about to be written. Whoever writes there on the CPU says so. */
void ph_mark_dirty(const void *pointer, size_t bytes);
/* Device memory in which nothing was ever written: it is zero, and looking at it would only cost
 * page faults. */
bool ph_is_clean(const void *pointer, size_t bytes);
/* A copy or a fill has brought values to a tensor above the limit for computed ones. */
void ph_keep_copied(const void *pointer);
/* Makes device memory zero; costs next to nothing where nothing was ever written. */
void ph_zero(void *pointer, size_t bytes);
/* The same for what is written as a whole, whatever is still owed to it. */
void ph_discard(void *pointer, size_t bytes);
/* payload.c: results that are owed to these bytes and nothing else are not wanted any more. */
void ph_payload_drop(const void *pointer, size_t bytes);
#endif
