/* races.c - threads of a job that is led use CUDA together from their first call on, for
 * ThreadSanitizer.
 *
 * Why it exists: a leader's library keeps state of its own for every kind of handle, and records,
 * samples and a filler beside the job's threads. Streams, events and kernels are shared as far as
 * CUDA allows it. One more thread delivers CUPTI's records, as a thread of CUPTI's own does on a
 * GPU. Another one goes on when the process ends. */
#include "../../intercept/c/kernel.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

enum { THREADS = 6, ROUNDS = 40, BETWEEN_MEETINGS = 10 };
enum { TO_DEVICE = 1, TO_HOST = 2, DEVICE_TO_DEVICE = 3, RELAXED = 2, NON_BLOCKING = 1 };
enum { NO_TIMING = 2, INT64 = 4, FP32 = 7, LARGE = 2 << 20, SMALL = 16 }; /* SMALL: exchanged */
enum { TENSOR = 17, TENSOR_DATA_TYPE = 901, A_DATA_TYPE = 1 };            /* cudnn_graph.h */
#define MEMORY_BYTES ((size_t)64 << 20)
#define CODE ".version 8.0"
struct unique_id {
    char bytes[128];
};
int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaFree(void *);
int cudaHostAlloc(void **, size_t, unsigned), cudaFreeHost(void *);
int cudaMemset(void *, int, size_t), cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *), cudaStreamQuery(void *);
int cudaStreamWaitEvent(void *, void *, unsigned), cudaDeviceSynchronize(void);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventDestroy(void *);
int cudaEventRecord(void *, void *), cudaEventQuery(void *), cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *);
int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaGraphDestroy(void *), cudaGetKernel(void **, const void *);
int cuModuleLoadData(void **, const void *), cuModuleUnload(void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
int cublasCreate_v2(void **), cublasSetStream_v2(void *, void *);
int cublasSgemm_v2(void *, int, int, int, int, int, const float *, const float *, int,
                   const float *, int, const float *, float *, int);
int cudnnBackendCreateDescriptor(int, void **), cudnnBackendDestroyDescriptor(void *);
int cudnnBackendSetAttribute(void *, int, int, int64_t, const void *);
int cudnnBackendFinalize(void *);
int ncclGetUniqueId(struct unique_id *), ncclCommDestroy(void *);
int ncclCommInitRank(void **, int, struct unique_id, int);
int ncclBroadcast(const void *, void *, size_t, int, int, void *, void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
/* Only the leader's library has these two. It is preloaded. */
__attribute__((weak)) int phantora_values_records(void);
__attribute__((weak)) void phantora_values_record(const char *, const void *, size_t, int, void *);

struct thread {
    unsigned number;
    char *memory;
    void *pinned, *stream, *event, *comm, *blas;
};
static pthread_barrier_t together;
static void *events[2], *stream, *functions[2]; /* made by the first thread */
static _Atomic bool over;
static const struct timespec moment = {.tv_nsec = 1000000};

static void *deliver(void *flush)
{
    for (; !over; nanosleep(&moment, NULL)) ((int (*)(unsigned))flush)(0);
    return NULL;
}

/* Each loop brings the leader the latency of an idle stream, and a new signature, with which it
 * settles what came before. */
static void *watch(void *unused)
{
    for (unsigned grid = 100;; grid++) {
        cudaEventQuery(events[0]);
        launch_kernel(stream, 1);
        nanosleep(&moment, NULL);
        launch_kernel(stream, 1);
        launch_kernel(stream, grid);
    }
    return unused;
}

/* A rendezvous, for which the hub lets all wait until the filler runs. No other rank is there. */
static void meet(void **comm)
{
    struct unique_id id;
    ncclGetUniqueId(&id);
    ncclCommInitRank(comm, 2, id, 1);
}

static void launch_loaded(void *function, void *on)
{
    cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, NULL, NULL);
}

static void launch_from_own_module(void *on)
{
    void *own, *function;
    if (cuModuleLoadData(&own, CODE)) return;
    if (!cuModuleGetFunction(&function, own, "own")) launch_loaded(function, on);
    cuModuleUnload(own);
}

static void compute(const struct thread *me, int round)
{
    const float one = 1;
    void *on = round % 3 ? me->stream : stream, *numbers = me->memory;
    if (me->number % 2) launch_kernel(on, (unsigned)(1 + round % 7));
    launch_loaded(functions[(round + (int)me->number) % 2], on);
    if (me->number % 2 == 0) launch_kernel(on, (unsigned)(1 + round % 7));
    cudaEventRecord(events[(round + (int)me->number) % 2], on);
    cudaMemcpyAsync(me->memory, me->pinned, 4096, TO_DEVICE, me->stream);
    cublasSgemm_v2(me->blas, 0, 0, 8 + round % 3, 8, 8, &one, numbers, 64, numbers, 64, &one,
                   numbers, 64);
    if (phantora_values_records && phantora_values_records())
        phantora_values_record("topk 1", me->memory, 64, 0, me->stream);
    if (round % 8 == 0) launch_from_own_module(on);
}

static void communicate(const struct thread *me, int round)
{
    char *result = me->memory + MEMORY_BYTES / 2;
    void *on = round % 3 ? me->stream : stream;
    ncclBroadcast(me->memory, result, LARGE, INT64, 0, me->comm, me->stream);
    ncclAllReduce(me->memory, result, LARGE, FP32, 0, me->comm, me->stream);
    ncclAllReduce(me->memory, result, SMALL, FP32, 0, me->comm, on);
}

static void wait_somehow(const struct thread *me, int round)
{
    void *event = events[(round + (int)me->number) % 2];
    char bytes[64];
    float ms;
    cudaStreamWaitEvent(stream, events[round % 2], 0);
    cudaEventQuery(events[round % 2]);
    cudaStreamQuery(stream);
    cudaEventRecord(me->event, me->stream);
    cudaEventElapsedTime(&ms, events[0], me->event);
    if (round % 4 == 0) cudaEventSynchronize(event);
    if (round % 4 == 1) cudaStreamSynchronize(stream);
    if (round % 4 == 2) cudaMemcpy(bytes, me->memory, sizeof bytes, TO_HOST);
    if (round % 4 == 3) cudaMemcpyAsync(me->pinned, me->memory, 64, TO_HOST, me->stream);
    if (round % 8 == 3) cudaDeviceSynchronize();
    cudaMemset(me->memory, 0, 64 + (size_t)round % 2);
}

/* Communication that is captured is refused. */
static void capture(const struct thread *me, void *on)
{
    void *graph;
    if (cudaStreamBeginCapture(on, RELAXED)) return;
    launch_kernel(on, 2);
    ncclAllReduce(me->memory, me->memory + 4096, SMALL, FP32, 0, me->comm, on);
    if (!cudaStreamEndCapture(on, &graph)) cudaGraphDestroy(graph);
}

static void use_fresh_handles(const struct thread *me, int round)
{
    void *fresh, *event, *kernel, *tensor;
    int type = 0;
    cudaStreamCreateWithFlags(&fresh, NON_BLOCKING);
    cudaEventCreateWithFlags(&event, NO_TIMING);
    if (round % 4 == 0) capture(me, fresh);
    cudaMemcpyAsync(me->memory + 4096, me->memory, 4096, DEVICE_TO_DEVICE, fresh);
    if (!cudaGetKernel(&kernel, (const void *)kernel_stub))
        cudaLaunchKernel(kernel, (struct dim3){2, 1, 1}, (struct dim3){64, 1, 1}, NULL, 0, fresh);
    cudaEventRecord(event, fresh);
    cudaStreamWaitEvent(stream, event, 0);
    cudaEventSynchronize(event);
    cudaEventDestroy(event);
    cudaStreamDestroy(fresh);
    if (cudnnBackendCreateDescriptor(TENSOR, &tensor)) return;
    cudnnBackendSetAttribute(tensor, TENSOR_DATA_TYPE, A_DATA_TYPE, 1, &type);
    cudnnBackendFinalize(tensor);
    cudnnBackendDestroyDescriptor(tensor);
}

/* As a DataLoader does while autograd's threads run. */
static void fork_once(void)
{
    pid_t child = fork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
}

static void make_shared_handles(void)
{
    void *module;
    cudaStreamCreateWithFlags(&stream, NON_BLOCKING);
    for (int i = 0; i < 2; i++) cudaEventCreateWithFlags(&events[i], 0);
    cuModuleLoadData(&module, CODE);
    cuModuleGetFunction(&functions[0], module, "one");
    cuModuleGetFunction(&functions[1], module, "two");
}

static void *work(void *number)
{
    struct thread me = {.number = (unsigned)(uintptr_t)number};
    void *comm, *too_much;
    pthread_barrier_wait(&together);
    if (me.number % 2) cudaSetDevice(0);
    cudaMalloc((void **)&me.memory, MEMORY_BYTES);
    cudaHostAlloc(&me.pinned, 4096, 0);
    cudaStreamCreateWithFlags(&me.stream, me.number % 2);
    cudaEventCreateWithFlags(&me.event, 0);
    cublasCreate_v2(&me.blas);
    cublasSetStream_v2(me.blas, me.stream);
    meet(&me.comm);
    if (me.number == 0) make_shared_handles();
    pthread_barrier_wait(&together);
    for (int round = 1; round <= ROUNDS; round++) {
        compute(&me, round);
        communicate(&me, round);
        wait_somehow(&me, round);
        use_fresh_handles(&me, round);
        if (me.number == 0 && round == ROUNDS / 2) fork_once();
        if (round % BETWEEN_MEETINGS) continue;
        pthread_barrier_wait(&together);
        meet(&comm);
        ncclCommDestroy(comm);
    }
    pthread_barrier_wait(&together);
    cudaMalloc(&too_much, (size_t)1 << 50); /* takes the filler's memory away */
    ncclCommDestroy(me.comm);
    cudaEventDestroy(me.event);
    cudaStreamDestroy(me.stream);
    cudaFreeHost(me.pinned);
    cudaFree(me.memory);
    return NULL;
}

static void run(void)
{
    pthread_t threads[THREADS], delivers, watches;
    void *cupti = dlopen(getenv("PHANTORA_CUPTI"), RTLD_NOW);
    __cudaRegisterFatBinaryEnd(register_kernel());
    pthread_barrier_init(&together, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    pthread_create(&delivers, NULL, deliver, dlsym(cupti, "cuptiActivityFlushAll"));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    over = true;
    pthread_join(delivers, NULL);
    pthread_create(&watches, NULL, watch, NULL);
    pthread_detach(watches);
    printf("threads %d\n", THREADS);
}
