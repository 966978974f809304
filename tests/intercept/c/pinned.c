/* pinned.c - page-locked host memory: how much of this machine's memory it uses, and what a large
 * copy writes to it, as `key value` lines. */
#include "conditions.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *);
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);
int cudaMemcpy(void *, const void *, size_t, int);

enum { TO_HOST = 2 };

static long resident(void) /* bytes of this process in memory */
{
    long pages = 0, skip;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &skip, &pages) != 2) pages = -1;
    if (file) fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void run(void)
{
    size_t many = (size_t)4 << 40, some = (size_t)256 << 20;
    unsigned char *pinned = NULL, *own;
    void *device = NULL, *wide = NULL;
    printf("alloc %d\n", CALL(cudaHostAlloc, &wide, many, 0) |
                             CALL(cudaHostAlloc, (void **)&pinned, some, 0) |
                             CALL(cudaMalloc, &device, some));
    memset(pinned, 5, 1 << 20);
    memset(pinned + some - 3, 6, 3);
    long before = resident();
    printf("copied %d\n", CALL(cudaMemcpy, pinned + 1, device, some - 2, TO_HOST));
    printf("grown %d\n", resident() - before > (8 << 20));
    printf("edges %d %d %d %d %d\n", pinned[0], pinned[1], pinned[1 << 19], pinned[some - 2],
           pinned[some - 1]);
    own = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("registered %d\n", CALL(cudaHostRegister, own, 1 << 20, 0));
    printf("unregistered %d", CALL(cudaHostUnregister, own));
    printf(" %d\n", CALL(cudaHostUnregister, own));
    printf("freed %d", CALL(cudaFreeHost, wide));
    printf(" %d\n", CALL(cudaFreeHost, wide));
}
