/* defined.h - which bytes of device memory hold values that were computed or written. See
 * defined.c. */
#ifndef PH_DEFINED_H
#define PH_DEFINED_H
#include <stdbool.h>
#include <stddef.h>

/* Nothing has computed these bytes: their kernel does nothing here, or has not run yet. They read
 * as zero. */
void ph_mark_undefined(const void *pointer, size_t bytes);
/* They hold what a GPU would hold. */
void ph_mark_defined(const void *pointer, size_t bytes);
/* Whether any of these bytes is undefined. Their pending results (payload.c) must have been
 * settled. */
bool ph_any_undefined(const void *pointer, size_t bytes);
/* Counts one copy to the host of undefined bytes, for the report. ph_move says which copies are. */
void ph_count_undefined_read(void);
#endif
