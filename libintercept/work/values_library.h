/* work/values_library.h - loads the values library (work/values_library.c). */
#ifndef PH_VALUES_LIBRARY_H
#define PH_VALUES_LIBRARY_H

/* Starts it if torch is there; once, and before torch's first operator. */
void ph_values_load(void);
#endif
