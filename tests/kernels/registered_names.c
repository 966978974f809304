/* registered_names.c - writes every kernel name that torch's CUDA library registers with the CUDA
 * runtime to $REGISTERED_NAMES, one per line. It is preloaded into a process that loads that
 * library. The names are the ground truth for what fatbin.py must find. */
#include <stdio.h>
#include <stdlib.h>

/* The CUDA runtime's own function is not called. It need not know the kernels, because the process
 * launches none. */
void __cudaRegisterFunction(void **fatbin, const char *host, char *device, const char *name,
                            int limit, void *tid, void *bid, void *block, void *grid, int *size)
{
    static FILE *out;
    (void)fatbin, (void)host, (void)name, (void)limit, (void)tid, (void)bid, (void)block,
        (void)grid, (void)size;
    if (!out && !(out = fopen(getenv("REGISTERED_NAMES"), "w"))) abort();
    fprintf(out, "%s\n", device);
}
