/* names.c - the mangled name of a kernel, which a job chooses. */
#include "../../../libintercept/work/kernel_name.c"
#include "fuzz.h"

#include <stdlib.h>

void fuzz_one(const unsigned char *bytes, size_t size)
{
    char *name = malloc(size + 1), *buffer = malloc(PH_KERNEL_NAME);
    memcpy(name, bytes, size);
    name[size] = 0;
    volatile size_t length = strlen(ph_kernel_name_portable(name, buffer, PH_KERNEL_NAME));
    (void)length;
    free(name);
    free(buffer);
}
