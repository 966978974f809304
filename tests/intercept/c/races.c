/* races.c - threads that use CUDA together from their first call on, for ThreadSanitizer.
 *
 * Streams, events and communicators are shared as far as CUDA allows it: any thread may record,
 * query and wait for any event. */
#include "kernel.h"
#include <pthread.h>

enum { THREADS = 6, ROUNDS = 60, EVENTS = 2, INTERPROCESS = 4 | 2, FP32 = 7 };
struct unique_id {
    char bytes[128];
};
int cuInit(unsigned), cudaGetDeviceCount(int *), cudaSetDevice(int);
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int);
int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);
int cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *);
int cudaMemset(void *, int, size_t), cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *), cudaStreamQuery(void *),
    cudaStreamWaitEvent(void *, void *, unsigned);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventDestroy(void *),
    cudaEventRecord(void *, void *);
int cudaEventQuery(void *), cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *), cudaDeviceSynchronize(void);
int ncclGetUniqueId(struct unique_id *);
int ncclCommInitRank(void **, int, struct unique_id, int), ncclCommDestroy(void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclRedOpCreatePreMulSum(int *, void *, int, int, void *), ncclRedOpDestroy(int, void *);
struct ipc_handle {
    char bytes[64];
};
int cudaIpcGetEventHandle(struct ipc_handle *, void *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
int cudaGetSymbolAddress(void **, const void *);
uint64_t phantora_elapsed_ns(void);
void phantora_pass_ns(uint64_t);

static pthread_barrier_t together;
static void *events[EVENTS], *stream; /* made by the first thread */
static char variable[64];
static void *variable_at[THREADS];
static struct ipc_handle exported[THREADS];

static void *work(void *number)
{
    uintptr_t which = (uintptr_t)number;
    void *memory, *own, *pooled, *pinned, *mine, *comm;
    struct unique_id id;
    size_t left, all;
    float ms;
    int count, operation;
    float factor = 0.5F;
    char bytes[64] = {0};
    pthread_barrier_wait(&together);
    switch (which % 3) { /* the first calls of the process */
    case 0: cudaMalloc(&memory, 8 << 20); break;
    case 1: cuInit(0), cudaGetDeviceCount(&count), cudaMalloc(&memory, 8 << 20); break;
    default: cudaMemGetInfo(&left, &all), cudaMalloc(&memory, 8 << 20);
    }
    cudaStreamCreateWithFlags(&own, which % 2);
    cudaEventCreateWithFlags(&mine, 0);
    ncclGetUniqueId(&id);
    ncclCommInitRank(&comm, 1, id, 0);
    if (!which) {
        cudaStreamCreateWithFlags(&stream, 1);
        for (int i = 0; i < EVENTS; i++) cudaEventCreateWithFlags(&events[i], i ? INTERPROCESS : 0);
    }
    pthread_barrier_wait(&together);
    cudaGetSymbolAddress(&variable_at[which], variable);
    cudaIpcGetEventHandle(&exported[which], events[1]);
    for (int i = 0; i < ROUNDS; i++) {
        void *event = events[(i + (int)which) % EVENTS], *on = i % 3 ? own : stream;
        launch_kernel(on, (unsigned)(1 + i % 7));
        cudaEventRecord(event, on);
        cudaMallocAsync(&pooled, 4096, own);
        cudaHostAlloc(&pinned, 4096, 0);
        cudaMemcpyAsync(memory, pinned, 4096, 1, own);
        ncclAllReduce(memory, (char *)memory + (4 << 20), 1 << 16, FP32, 0, comm, own);
        if (!ncclRedOpCreatePreMulSum(&operation, &factor, FP32, 0, comm)) {
            ncclAllReduce(memory, (char *)memory + (4 << 20), 16, FP32, operation, comm, own);
            ncclRedOpDestroy(operation, comm);
        }
        cudaStreamWaitEvent(stream, events[i % EVENTS], 0);
        cudaEventQuery(events[i % EVENTS]);
        cudaStreamQuery(stream);
        cudaEventRecord(mine, own);
        cudaEventElapsedTime(&ms, events[0], mine);
        if (i % 4 == 0) cudaEventSynchronize(event);
        if (i % 4 == 1) cudaStreamSynchronize(stream);
        if (i % 4 == 2) cudaMemcpy(bytes, memory, sizeof bytes, 2);
        if (i % 8 == 3) cudaDeviceSynchronize();
        cudaEventElapsedTime(&ms, event, mine);
        cudaMemset(memory, 0, 64);
        phantora_pass_ns(1000);
        phantora_elapsed_ns();
        cudaFreeHost(pinned);
        cudaFreeAsync(pooled, own);
    }
    ncclCommDestroy(comm);
    cudaEventDestroy(mine);
    cudaStreamDestroy(own);
    cudaFree(memory);
    return NULL;
}

static void run(void)
{
    pthread_t threads[THREADS];
    void **binary = register_kernel();
    __cudaRegisterVar(binary, variable, variable, "variable", 0, sizeof variable, 0, 0);
    __cudaRegisterFatBinaryEnd(binary);
    pthread_barrier_init(&together, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int differ = 0;
    for (int i = 1; i < THREADS; i++)
        differ += variable_at[i] != variable_at[0] ||
                  memcmp(&exported[i], &exported[0], sizeof *exported) != 0;
    printf("threads %d\ndiffer %d\n", THREADS, differ);
}
