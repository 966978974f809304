/* base/environment.c - see base/environment.h. */
#include "base/environment.h"
#include "backend.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ph_env(const char *name)
{
    static const char prefix[] = "PHANTORA_";
    char own[128];
    const char *value = NULL;
    if (ph_backend.own_prefix && strncmp(name, prefix, sizeof prefix - 1) == 0 &&
        snprintf(own, sizeof own, "%s%s", ph_backend.own_prefix, name + sizeof prefix - 1) <
            (int)sizeof own)
        value = getenv(own);
    if (!value) value = getenv(name); /* an empty PHANTORA_LEAD_X counts as unset */
    return value && *value ? value : NULL;
}
