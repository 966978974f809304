/* values.c - a file of recorded values, which a user gives. */
#define main unused_main
#include "../../values/c/replay_main.c"
#undef main
#include "fuzz.h"

void fuzz_one(const unsigned char *bytes, size_t size)
{
    static const uint32_t occurrences[] = {0, 1, 2, 7, UINT32_MAX};
    if (!size) return; /* no file is mapped then */
    table = (unsigned char *)(uintptr_t)bytes;
    table_bytes = size;
    once = PTHREAD_ONCE_INIT;
    file = NULL;
    mapped = NULL;
    if (!setjmp(refused))
        for (size_t i = 0; i < sizeof occurrences / sizeof *occurrences; i++) {
            struct ph_replayed found;
            volatile unsigned char sum = 0;
            asked = occurrences[i];
            if (ph_replay("a", true, &found))
                for (size_t j = 0; j < found.bytes; j++)
                    sum += ((const unsigned char *)found.value)[j];
        }
    free(mapped);
}
