/* forked.c - children of a process that uses CUDA from two threads while it forks, as lines `result
 * times`. A child that hangs is killed by its alarm. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned), cudaGetDeviceCount(int *), cudaSetDevice(int), cudaMalloc(void **, size_t);
int cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaDeviceSynchronize(void);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *),
    cudaMallocAsync(void **, size_t, void *);
int cudaFreeAsync(void *, void *), cudaEventCreate(void **), cudaEventRecord(void *, void *);
int cudaEventDestroy(void *), cudaStreamDestroy(void *), cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *), cudaMemset(void *, int, size_t), cudaMemGetInfo(size_t *, size_t *);

enum { CHILDREN = 100, NOT_INITIALIZED = 3 };
static _Atomic int over;
static char bytes[4096];

static void *work(void *unused)
{
    (void)unused;
    while (!over) {
        void *a, *b, *host, *event, *stream;
        cudaMalloc(&a, sizeof bytes);
        cudaStreamCreate(&stream);
        cudaMallocAsync(&b, sizeof bytes, stream);
        cudaMemcpy(a, bytes, sizeof bytes, 1);
        cudaEventCreate(&event);
        cudaEventRecord(event, stream);
        cudaHostAlloc(&host, 64, 0);
        cudaFreeHost(host);
        cudaEventDestroy(event);
        cudaFreeAsync(b, stream);
        cudaStreamDestroy(stream);
        cudaFree(a);
    }
    return NULL;
}

/* The call that did not fail as the real driver's does; 0: none. */
static int child(void *pointer, void *stream)
{
    int count;
    size_t all, left;
    void *fresh;
    int codes[] = {
        cuInit(0),
        cudaGetDeviceCount(&count),
        cudaSetDevice(0),
        cudaMalloc(&fresh, 512),
        cudaMallocAsync(&fresh, 512, stream),
        cudaMemcpy(pointer, bytes, sizeof bytes, 1),
        cudaMemset(pointer, 0, 64),
        cudaMemGetInfo(&left, &all),
        cudaStreamCreate(&fresh),
        cudaStreamSynchronize(stream),
        cudaEventCreate(&fresh),
        cudaHostAlloc(&fresh, 64, 0),
        cudaDeviceSynchronize(),
        cudaFree(pointer),
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] != NOT_INITIALIZED) return 1 + (int)i;
    return 0;
}

int main(void)
{
    int results[256] = {0}, hung = 0, status;
    void *pointer, *stream;
    pthread_t threads[2];
    if (cudaMalloc(&pointer, sizeof bytes) || cudaStreamCreate(&stream)) return 1;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            _exit(child(pointer, stream));
        }
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
            hung++;
        else
            results[WEXITSTATUS(status)]++;
    }
    over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 256; i++)
        if (results[i]) printf("%d %d\n", i, results[i]);
    if (hung) printf("hung %d\n", hung);
    return 0;
}
