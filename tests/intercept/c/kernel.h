/* kernel.h - a kernel to register and to launch, as nvcc would compile it into a program.
 *
 * Why it exists: programs that launch need the same declarations of CUDA's runtime, and a fat
 * binary that holds nothing: no kernel runs. */
#ifndef KERNEL_H
#define KERNEL_H
#include "conditions.h"

struct dim3 {
    unsigned x, y, z;
};
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
void __cudaRegisterFatBinaryEnd(void **);
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);

static void kernel_stub(void) {}
static char kernel_name[] = "_Z6kernelPfi";
static struct { /* the wrapper that nvcc emits around an (here empty) fat binary */
    int magic, version;
    const void *data;
    void *unused;
} kernel_binary = {0x466243b1, 1, "\x50\xed\x55\xba\x01\x00\x10\x00\0\0\0\0\0\0\0\0", NULL};

/* The handle, to which more may be registered before __cudaRegisterFatBinaryEnd. */
static void **register_kernel(void)
{
    void **handle = CALL(__cudaRegisterFatBinary, &kernel_binary);
    CALL(__cudaRegisterFunction, handle, (const char *)kernel_stub, kernel_name, kernel_name, -1,
         NULL, NULL, NULL, NULL, NULL);
    return handle;
}

static int launch_kernel(void *stream, unsigned grid)
{
    float *pointer = NULL;
    int number = 4;
    void *arguments[] = {&pointer, &number};
    struct dim3 blocks = {grid, 1, 1}, threads = {128, 1, 1};
    return CALL(cudaLaunchKernel, (const void *)kernel_stub, blocks, threads, arguments, 0, stream);
}
#endif
