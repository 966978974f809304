/* driver_logs.c - listeners for the driver's error log, which stays empty.
 *
 * Why it exists: PyTorch 2.15 registers one when it starts, to add the driver's own words to an
 * error's text. There is no driver here, so nothing is ever logged and no listener is called. */
#define PH_CLASS PH_HINT
#include "base/api.h"

#include <stdlib.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };

PH_API(int, cuLogsRegisterCallback, (void *callback, void *user_data, void **handle))
{
    (void)user_data;
    if (callback == NULL) return INVALID_VALUE;
    void *made = malloc(1); /* handles must differ */
    if (made == NULL) return OUT_OF_MEMORY;
    if (handle != NULL)
        *handle = made;
    else
        free(made);
    return OK;
}

PH_API(int, cuLogsUnregisterCallback, (void *handle))
{
    if (handle == NULL) return INVALID_VALUE;
    free(handle);
    return OK;
}
