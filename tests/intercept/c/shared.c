/* shared.c - writes to all of a large range of device memory that it has exported, whose file is
 * sparse. */
#include "conditions.h"

int cudaMalloc(void **, size_t), cudaIpcGetMemHandle(void *, void *);

enum { LARGE = 16 << 20, PAGE = 4096 };

static void run(void)
{
    char handle[64], *memory;
    if (cudaMalloc((void **)&memory, LARGE) || cudaIpcGetMemHandle(handle, memory)) exit(2);
    printf("exported 1\n");
    fflush(stdout);
    for (size_t at = 0; at < LARGE; at += PAGE) memory[at] = 1;
    printf("written 1\n");
}
