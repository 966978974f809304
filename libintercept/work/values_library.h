/* work/values_library.h - loads the values library (work/values_library.c). */
#ifndef PH_VALUES_LIBRARY_H
#define PH_VALUES_LIBRARY_H
#include <stdbool.h>

/* Loads and starts the library if this is a PyTorch process. It does so once, before torch's first
 * operator. */
void ph_values_load(void);
/* Loads the library if this is a PyTorch process, and lets it allocate PyTorch's host tensors,
 * once. False: it is none yet. */
bool ph_values_allocate(void);
#endif
