/* known.h - which bytes of device memory have values that somebody computed or wrote. See known.c.
 */
#ifndef PH_KNOWN_H
#define PH_KNOWN_H
#include <stdbool.h>
#include <stddef.h>

/* Nothing has computed these bytes: a kernel that does nothing here was to write them, or nobody
 * has yet. They read as zero. */
void ph_mark_undefined(const void *pointer, size_t bytes);
/* They hold what a GPU's would. */
void ph_mark_defined(const void *pointer, size_t bytes);
/* Whether any of them is unknown. What is owed to them (payload.c) must have been settled. */
bool ph_any_undefined(const void *pointer, size_t bytes);
/* Counts, for the report, one copy to the host of bytes that nothing computed (ph_move says which
 * are). */
void ph_count_undefined_read(void);
#endif
