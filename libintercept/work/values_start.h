/* work/values_start.h - the results of phantora_values_start, for C and C++.
 *
 * Why it exists: the interceptor must recognise a values library of another build. So these numbers
 * never change. */
#ifndef PHANTORA_VALUES_START_H
#define PHANTORA_VALUES_START_H

enum { VALUES_STARTED, VALUES_OTHER_TORCH, VALUES_OTHER_INTERCEPTOR, VALUES_NO_CALLBACK };

#endif
