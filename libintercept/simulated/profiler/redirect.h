/* simulated/profiler/redirect.h - what one loaded library imports, pointed elsewhere.
 *
 * Why it exists: PyTorch's profiler is to read simulated time while everybody else reads real time.
 * A function that this library exported would reach every library of the process, and cost each of
 * its callers. */
#ifndef PH_REDIRECT_H
#define PH_REDIRECT_H
#include <stdbool.h>

/* From now on `library`, which is loaded, calls `to` instead of `function`. `real` receives the
 * function. False, and nothing has changed, when the library does not import it. */
bool ph_redirect(const char *library, const char *function, void *to, void **real);
#endif
