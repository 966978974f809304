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
int cudaStreamQuery(void *), cudaEventQuery(void *), cudaEventElapsedTime(float *, void *, void *);
int cudaGetSymbolAddress(void **, const void *), cudaIpcGetMemHandle(void *, void *);
struct unique_id {
    char bytes[128];
};
int ncclCommInitRank(void **, int, struct unique_id, int), ncclCommDestroy(void *);
int ncclCommSplit(void *, int, int, void **, void *), ncclMemAlloc(void **, size_t);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int cublasCreate_v2(void **), cudnnCreate(void **), cusolverDnCreate(void **);
int cublasSgemm_v2(void *, int, int, int, int, int, const float *, const float *, int,
                   const float *, int, const float *, float *, int);
int cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
int cuMemAddressFree(void *, size_t), cuMemUnmap(void *, size_t);
int cuModuleLoad(void **, const char *), cudaIpcCloseMemHandle(void *);

enum { CHILDREN = 200, NOT_INITIALIZED = 3 };
static _Atomic int over;
static char bytes[4096], variable[64];
static void *comm, *blas;

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

/* The call that did not fail, as the real driver's and libraries' do; 0: none. */
static int child(void *pointer, void *stream)
{
    int count;
    size_t all, left;
    void *fresh;
    float ms;
    char handle[64];
    struct unique_id id = {{0}};
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
        cudaStreamQuery(stream),
        cudaEventQuery(stream),
        cudaEventElapsedTime(&ms, stream, stream),
        cudaGetSymbolAddress(&fresh, variable),
        cudaIpcGetMemHandle(handle, pointer),
        cudaIpcCloseMemHandle(pointer),
        cudaHostRegister(bytes, sizeof bytes, 0),
        cudaHostUnregister(bytes),
        cuMemAddressFree(pointer, 4096),
        cuMemUnmap(pointer, 4096),
        cuModuleLoad(&fresh, "/proc/self/exe"),
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] != NOT_INITIALIZED) return 1 + (int)i;
    float one = 1, *matrix = pointer;
    int others[] = {
        ncclCommInitRank(&fresh, 1, id, 0),
        ncclAllReduce(pointer, pointer, 16, 7, 0, comm, stream),
        ncclCommSplit(comm, 0, 0, &fresh, NULL),
        ncclMemAlloc(&fresh, 512),
        ncclCommDestroy(comm),
        cublasCreate_v2(&fresh),
        cublasSgemm_v2(blas, 0, 0, 4, 4, 4, &one, matrix, 4, matrix, 4, &one, matrix, 4),
        cudnnCreate(&fresh),
        cusolverDnCreate(&fresh),
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!others[i]) return 101 + (int)i;
    return 0;
}

int main(void)
{
    int results[256] = {0}, hung = 0, status;
    void *pointer, *stream;
    pthread_t threads[2];
    struct unique_id id = {{0}};
    if (cudaMalloc(&pointer, sizeof bytes) || cudaStreamCreate(&stream) ||
        ncclCommInitRank(&comm, 1, id, 0) || cublasCreate_v2(&blas))
        return 1;
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
