/* registered_names.c - preloaded into a process that loads torch's CUDA library: writes every
 * kernel name that it registers with the CUDA runtime, one per line, to $REGISTERED_NAMES. The
 * ground truth for what fatbin.py must find. */
#include <stdio.h>
#include <stdlib.h>

/* The runtime itself never hears of the kernels: the process launches none. */
void __cudaRegisterFunction(void **fatbin, const char *host, char *device, const char *name,
                            int limit, void *tid, void *bid, void *block, void *grid, int *size)
{
    static FILE *out;
    (void)fatbin, (void)host, (void)name, (void)limit, (void)tid, (void)bid, (void)block,
        (void)grid, (void)size;
    if (!out && !(out = fopen(getenv("REGISTERED_NAMES"), "w"))) abort();
    fprintf(out, "%s\n", device);
}
