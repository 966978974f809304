/* memory.c - allocations, their accounting, and values through copies, as `key value` lines. */
#include "conditions.h"

int cudaSetDevice(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemset(void *, int, size_t);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
const char *cudaGetErrorName(int);

enum { TO_DEVICE = 1, TO_HOST = 2, DEVICE_TO_DEVICE = 3 };

static void run(void)
{
    size_t free_bytes, total, before;
    void *a = NULL, *b = NULL, *huge = NULL;
    unsigned char out[64], in[64];
    CALL(cudaSetDevice, 3);
    CALL(cudaMemGetInfo, &before, &total);
    printf("total %zu\nfresh %zu\n", total, total - before);
    printf("malloc %d\n", CALL(cudaMalloc, &a, (size_t)20 << 20) | CALL(cudaMalloc, &b, 512));
    CALL(cudaMemGetInfo, &free_bytes, &total);
    printf("taken %zu\n", before - free_bytes);
    for (int i = 0; i < 64; i++) in[i] = (unsigned char)(3 * i + 1);
    memset(out, 0, sizeof out);
    CALL(cudaMemcpy, b, in, sizeof in, TO_DEVICE);
    CALL(cudaMemcpy, a, b, sizeof in, DEVICE_TO_DEVICE);
    CALL(cudaMemcpy, out, a, sizeof out, TO_HOST);
    printf("carried %d\n", memcmp(in, out, sizeof in) == 0);
    CALL(cudaMemset, a, 7, 16);
    CALL(cudaMemcpy, out, a, sizeof out, TO_HOST);
    printf("set %d %d %d\n", out[0], out[15], out[16] == in[16]);
    printf("too_much %d\n", CALL(cudaMalloc, &huge, total));
    printf("name %s\n", CALL(cudaGetErrorName, CALL(cudaPeekAtLastError)));
    printf("last %d", CALL(cudaGetLastError));
    printf(" %d\n", CALL(cudaGetLastError));
    printf("freed %d\n", CALL(cudaFree, a) | CALL(cudaFree, b) | CALL(cudaFree, NULL));
    printf("twice %d\n", CALL(cudaFree, a));
    CALL(cudaMemGetInfo, &free_bytes, &total);
    printf("back %d\n", free_bytes == before);
}
