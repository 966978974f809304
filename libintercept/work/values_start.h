/* work/values_start.h - what phantora_values_start answers. For C and C++.
 *
 * Why it exists: a values library of another build must be told apart from this one's, so the
 * numbers stay what they are. */
#ifndef PHANTORA_VALUES_START_H
#define PHANTORA_VALUES_START_H

enum { VALUES_STARTED, VALUES_OTHER_TORCH, VALUES_OTHER_INTERCEPTOR, VALUES_NO_CALLBACK };

#endif
