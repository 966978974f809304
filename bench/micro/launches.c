/* launches.c - launches kernels as a job does, as often as standard input asks.
 *
 * Why it exists: the cost of a launch must be measured in a process that the interceptor is
 * preloaded into. Each number on standard input is answered by a line once so many launches, in
 * batches that fit the launch queue, are done. */
#include <stdint.h>
#include <stdio.h>

enum { BATCH = 500 };
struct dim3 {
    unsigned x, y, z;
};
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
void __cudaRegisterFatBinaryEnd(void **);
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
int cudaDeviceSynchronize(void);

static void kernel_stub(void) {}
static char name[] = "_Z6kernelPfi";
static struct { /* the wrapper that nvcc emits around an (here empty) fat binary */
    int magic, version;
    const void *data;
    void *unused;
} wrapper = {0x466243b1, 1, "\x50\xed\x55\xba\x01\x00\x10\x00\0\0\0\0\0\0\0\0", NULL};

static int launch(void)
{
    float *pointer = NULL;
    int number = 4;
    void *arguments[] = {&pointer, &number};
    struct dim3 blocks = {64, 1, 1}, threads = {128, 1, 1};
    return cudaLaunchKernel((const void *)kernel_stub, blocks, threads, arguments, 0, NULL);
}

int main(void)
{
    unsigned count;
    void **handle = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(handle, (const char *)kernel_stub, name, name, -1, NULL, NULL, NULL,
                           NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
    while (scanf("%u", &count) == 1) {
        for (unsigned i = 1; i <= count; i++)
            if (launch() != 0 || (i % BATCH == 0 && cudaDeviceSynchronize() != 0)) return 1;
        puts("done");
        fflush(stdout);
    }
    return 0;
}
