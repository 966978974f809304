/* planted.c - a parser with a defect behind four checks, to see that guide.c comes that far. */
#include "fuzz.h"

#include <stdlib.h>

void fuzz_one(const unsigned char *bytes, size_t size)
{
    if (size < 6 || bytes[0] != 'P') return;
    if (bytes[1] != 0x7f) return;
    if (bytes[2] != 'N') return;
    if (bytes[3] != 0xd1) return;
    volatile unsigned char *small = malloc(4);
    small[bytes[4]] = bytes[5];
    free((void *)(uintptr_t)small);
}
