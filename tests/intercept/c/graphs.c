/* graphs.c - the times of graph launches, and the values that they move, as `key value` lines;
 * times in whole nanoseconds.
 *
 * Why it exists: a graph's times depend on its dependencies only, not on what the host did during
 * the capture. */
#include "kernel.h"

int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamWaitEvent(void *, void *, unsigned),
    cudaStreamSynchronize(void *);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *),
    cudaEventRecordWithFlags(void *, void *, unsigned);
int cudaEventElapsedTime(float *, void *, void *), cudaDeviceSynchronize(void),
    cudaMalloc(void **, size_t), cudaHostAlloc(void **, size_t, unsigned);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *),
    cudaMemsetAsync(void *, int, size_t, void *);
int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **),
    cudaGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cudaGraphLaunch(void *, void *), cudaGraphDestroy(void *), cudaGraphExecDestroy(void *),
    cudaLaunchHostFunc(void *, void (*)(void *), void *);

static void *s, *t, *fork_event, *join_event, *from, *to;
static volatile int called;

static void launch(void *stream)
{
    int status = launch_kernel(stream, 100);
    if (status != 0) printf("launch_failed %d\n", status);
}

static void *captured(void)
{
    void *graph = NULL, *exec = NULL;
    int ended = CALL(cudaStreamEndCapture, s, &graph),
        made = CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0);
    if (ended || made || CALL(cudaGraphDestroy, graph))
        printf("capture_failed %d %d\n", ended, made);
    return exec;
}

/* The time of `count` launches. A kernel comes first, so that nothing waits for the host. */
static long time_of(void *exec, int count)
{
    float milliseconds = -1;
    launch(s);
    CALL(cudaEventRecord, from, s);
    for (int i = 0; i < count; i++)
        if (CALL(cudaGraphLaunch, exec, s) != 0) printf("graph_failed 1\n");
    CALL(cudaEventRecord, to, s);
    CALL(cudaDeviceSynchronize);
    int status = CALL(cudaEventElapsedTime, &milliseconds, from, to);
    return status != 0 ? -status : (long)((double)milliseconds * 1e6 + 0.5);
}

static void fork_off(void *main_stream, void *side)
{
    CALL(cudaEventRecord, fork_event, main_stream);
    CALL(cudaStreamWaitEvent, side, fork_event, 0);
}
static void join(void *main_stream, void *side)
{
    CALL(cudaEventRecord, join_event, side);
    CALL(cudaStreamWaitEvent, main_stream, join_event, 0);
}
static void count_call(void *data)
{
    (void)data;
    __atomic_fetch_add(&called, 1, __ATOMIC_SEQ_CST);
}

static void times(void)
{
    CALL(cudaStreamBeginCapture, s, 0);
    for (int i = 0; i < 10; i++) launch(s);
    void *chain = captured();
    printf("chain %ld\n", time_of(chain, 1));
    printf("chain_twice %ld\n", time_of(chain, 2));

    CALL(cudaStreamBeginCapture, s, 0);
    launch(s);
    fork_off(s, t);
    launch(t), launch(t), launch(t);
    launch(s);
    join(s, t);
    launch(s);
    printf("fork %ld\n", time_of(captured(), 1));

    CALL(cudaStreamBeginCapture, s, 0);
    fork_off(s, t);
    launch(t), launch(t);
    join(s, t);
    printf("only_forked %ld\n", time_of(captured(), 1));

    void *middle;
    float milliseconds = -1;
    CALL(cudaEventCreateWithFlags, &middle, 0);
    CALL(cudaStreamBeginCapture, s, 0);
    launch(s), launch(s);
    CALL(cudaEventRecordWithFlags, middle, s, 1);
    launch(s);
    time_of(captured(), 1);
    CALL(cudaEventElapsedTime, &milliseconds, from, middle);
    printf("until_middle %ld\n", (long)((double)milliseconds * 1e6 + 0.5));

    /* Launches of one graph on two streams run one after the other. */
    launch(s);
    CALL(cudaEventRecord, from, s);
    CALL(cudaGraphLaunch, chain, s);
    CALL(cudaGraphLaunch, chain, t);
    CALL(cudaEventRecord, to, t);
    CALL(cudaDeviceSynchronize);
    CALL(cudaEventElapsedTime, &milliseconds, from, to);
    printf("two_streams %ld\n", (long)((double)milliseconds * 1e6 + 0.5));
    printf("destroyed %d\n", CALL(cudaGraphExecDestroy, chain));
}

static void values(void)
{
    unsigned char *device, *other, *host, before, after[3];
    CALL(cudaMalloc, (void **)&device, 4096);
    CALL(cudaMalloc, (void **)&other, 4096);
    CALL(cudaHostAlloc, (void **)&host, 4096, 0);
    memset(host, 1, 4096);
    CALL(cudaMemsetAsync, device, 9, 4096, s);
    CALL(cudaStreamSynchronize, s);
    CALL(cudaStreamBeginCapture, s, 0);
    CALL(cudaMemcpyAsync, device, host, 4096, 1, s);
    CALL(cudaMemcpyAsync, other, device, 4096, 3, s);
    CALL(cudaMemsetAsync, device, 5, 16, s);
    CALL(cudaLaunchHostFunc, s, count_call, NULL);
    void *exec = captured();
    before = device[0];
    for (int i = 0; i < 2; i++) {
        memset(host, 2 + i, 4096);
        CALL(cudaGraphLaunch, exec, s);
    }
    CALL(cudaDeviceSynchronize);
    after[0] = device[0], after[1] = device[4095], after[2] = other[0];
    for (int i = 0; i < 5000 && called < 2; i++) usleep(1000);
    printf("values %d %d %d %d calls %d\n", before, after[0], after[1], after[2], called);
}

static void run(void)
{
    register_kernel();
    CALL(cudaStreamCreateWithFlags, &s, 1);
    CALL(cudaStreamCreateWithFlags, &t, 1);
    CALL(cudaEventCreateWithFlags, &fork_event, 2);
    CALL(cudaEventCreateWithFlags, &join_event, 2);
    CALL(cudaEventCreateWithFlags, &from, 0);
    CALL(cudaEventCreateWithFlags, &to, 0);
    times();
    values();
}
