/* env.c - the interceptor's own environment variables, in a leader.
 *
 * Why it exists: a leader may run over an emulated GPU, whose interceptor reads PHANTORA_RUN_DIR
 * and the like as well; what is meant for the leader then comes as PHANTORA_LEAD_RUN_DIR
 * (docs/leading.md). */
#include "base/core.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ph_env(const char *name)
{
    static const char prefix[] = "PHANTORA_";
    char own[128];
    const char *value = NULL;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0 &&
        snprintf(own, sizeof own, "PHANTORA_LEAD_%s", name + sizeof prefix - 1) < (int)sizeof own)
        value = getenv(own);
    if (!value) value = getenv(name); /* an empty PHANTORA_LEAD_X stands for "not set" */
    return value && *value ? value : NULL;
}
