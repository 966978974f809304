/* env.c - the interceptor's own environment variables, in a simulated rank.
 *
 * Why it exists: a leader may run over an emulated GPU, whose interceptor reads the same names
 * (leader/env.c). */
#include "base/core.h"
#include <stdlib.h>

const char *ph_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}
