/* capture.c - what each call returns while streams are being captured, as `scenario code...` lines.
 *
 * Why it exists: PyTorch reports a job's mistakes in a capture by these codes. Each line ends with
 * the end of the capture: its code, the graph, whether both streams are still capturing, and the
 * last error. The last error is read twice, because reading it clears it. */
#include "conditions.h"
#include <pthread.h>
#include <semaphore.h>

int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamDestroy(void *),
    cudaStreamSynchronize(void *), cudaStreamQuery(void *);
int cudaStreamWaitEvent(void *, void *, unsigned), cudaEventCreateWithFlags(void **, unsigned),
    cudaEventRecord(void *, void *);
int cudaEventRecordWithFlags(void *, void *, unsigned), cudaEventQuery(void *),
    cudaEventSynchronize(void *), cudaEventDestroy(void *);
int cudaEventElapsedTime(float *, void *, void *), cudaDeviceSynchronize(void),
    cudaMalloc(void **, size_t), cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int),
    cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, void *), cudaHostAlloc(void **, size_t, unsigned),
    cudaFreeHost(void *), cudaGetLastError(void);
int cudaMemGetInfo(size_t *, size_t *), cudaLaunchHostFunc(void *, void (*)(void *), void *),
    cudaStreamBeginCapture(void *, int);
int cudaStreamAddCallback(void *, void (*)(void *, int, void *), void *, unsigned);
int cudaStreamEndCapture(void *, void **), cudaStreamIsCapturing(void *, int *),
    cudaThreadExchangeStreamCaptureMode(int *);
int cudaStreamGetCaptureInfo(void *, int *, unsigned long long *, void **, const void **,
                             const void **, size_t *);
int cudaGraphInstantiateWithFlags(void **, void *, unsigned long long),
    cudaGraphLaunch(void *, void *), cudaGraphDestroy(void *);
int cudaGraphExecDestroy(void *), cudaGraphGetNodes(void *, void **, size_t *),
    cudaGraphNodeGetType(void *, int *), cudaGraphCreate(void **, unsigned);
int cudaGraphGetRootNodes(void *, void **, size_t *),
    cudaGraphNodeGetDependencies(void *, void **, void *, size_t *);
int cudaGraphUpload(void *, void *), cudaGraphClone(void **, void *),
    cudaGraphGetEdges(void *, void **, void **, void *, size_t *);
int cudaUserObjectCreate(void **, void *, void (*)(void *), unsigned, unsigned),
    cudaUserObjectRetain(void *, unsigned), cudaUserObjectRelease(void *, unsigned),
    cudaGraphRetainUserObject(void *, void *, unsigned, unsigned);

enum { GLOBAL, THREAD_LOCAL, RELAXED };
enum { BYTES = 4096, DISABLE_TIMING = 2 };
static void *s, *t, *blocking, *e, *f, *memory, *pinned, *graph, *exec;
static char pageable[BYTES];
static int status;

static void begin(int mode)
{
    CALL(cudaStreamCreateWithFlags, &s, 1);
    CALL(cudaStreamCreateWithFlags, &t, 1);
    CALL(cudaEventCreateWithFlags, &e, DISABLE_TIMING);
    CALL(cudaEventCreateWithFlags, &f, DISABLE_TIMING);
    graph = exec = NULL;
    if (mode >= 0) printf("%d", CALL(cudaStreamBeginCapture, s, mode));
}

static void say(int code) { printf(" %d", code); }

static void say_status(void *stream)
{
    status = -1;
    int code = CALL(cudaStreamIsCapturing, stream, &status);
    printf(" %d/%d", code, status);
}

static void work(void *stream) { say(CALL(cudaMemsetAsync, memory, 0, BYTES, stream)); }

static void say_graph(void)
{
    size_t nodes = 0, roots = 0, edges = 0;
    void *list[16];
    if (!graph) {
        printf(" none");
        return;
    }
    say(CALL(cudaGraphGetNodes, graph, NULL, &nodes));
    say(CALL(cudaGraphGetRootNodes, graph, NULL, &roots));
    say(CALL(cudaGraphGetEdges, graph, NULL, NULL, NULL, &edges));
    printf(" nodes=%zu roots=%zu edges=%zu types=", nodes, roots, edges);
    if (nodes > 16) return;
    CALL(cudaGraphGetNodes, graph, list, &nodes);
    for (size_t i = 0; i < nodes; i++) {
        int type = -1;
        CALL(cudaGraphNodeGetType, list[i], &type);
        printf("%d,", type);
    }
}

/* Ends every scenario: ends the capture, then prints the graph, the state of both streams, and the
 * last error. */
static void end(void)
{
    say(CALL(cudaStreamEndCapture, s, &graph));
    say_graph();
    say_status(s);
    say_status(t);
    say(CALL(cudaGetLastError));
    say(CALL(cudaGetLastError));
    printf("\n");
    CALL(cudaStreamDestroy, s);
    CALL(cudaStreamDestroy, t);
    CALL(cudaDeviceSynchronize);
    CALL(cudaGetLastError);
}

static void nothing(void *data) { (void)data; }
static void back(void *stream, int code, void *data) { (void)stream, (void)code, (void)data; }

static void *other_mallocs(void *mode)
{
    void *got = NULL;
    int m = *(int *)mode;
    if (m >= 0) CALL(cudaThreadExchangeStreamCaptureMode, &m);
    say(CALL(cudaMalloc, &got, BYTES));
    say(CALL(cudaEventQuery, f));
    say(CALL(cudaEventSynchronize, f));
    say(CALL(cudaStreamSynchronize, t));
    return NULL;
}
static void *other_ends(void *unused)
{
    (void)unused;
    say(CALL(cudaStreamEndCapture, s, &graph));
    return NULL;
}
static void on_other_thread(void *(*what)(void *), void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, what, argument);
    pthread_join(thread, NULL);
}

#define SCENARIO(mode, name) \
    for (int once = (printf(name " "), begin(mode), 1); once; once = 0, end())

static void status_of_captures(void)
{
    unsigned long long id = 0;
    const void *dependencies = NULL;
    void *building = NULL;
    size_t count = 7;
    SCENARIO(-1, "end_without_begin");
    SCENARIO(GLOBAL, "empty") say_status(s);
    SCENARIO(GLOBAL, "two_in_a_row") { work(s), work(s); }
    SCENARIO(GLOBAL, "begin_twice") say(CALL(cudaStreamBeginCapture, s, GLOBAL));
    SCENARIO(-1, "begin_legacy") say(CALL(cudaStreamBeginCapture, NULL, GLOBAL));
    SCENARIO(-1, "begin_bad_mode") say(CALL(cudaStreamBeginCapture, s, 9));
    SCENARIO(GLOBAL, "info")
    {
        work(s);
        say(CALL(cudaStreamGetCaptureInfo, s, &status, &id, &building, &dependencies, NULL,
                 &count));
        printf(" status=%d id=%d graph=%d dependencies=%d count=%zu", status, id != 0,
               building != NULL, dependencies != NULL, count);
    }
    SCENARIO(-1, "info_without")
    {
        id = 5;
        say(CALL(cudaStreamGetCaptureInfo, s, &status, &id, NULL, NULL, NULL, NULL));
        printf(" status=%d", status);
    }
    SCENARIO(GLOBAL, "host_function") say(CALL(cudaLaunchHostFunc, s, nothing, NULL));
    SCENARIO(GLOBAL, "callback") say(CALL(cudaStreamAddCallback, s, back, NULL, 0));
    SCENARIO(GLOBAL, "destroy_captured") { work(s); }
}

static void waiting(void)
{
    SCENARIO(GLOBAL, "synchronize_captured")
    {
        say(CALL(cudaStreamSynchronize, s)), say_status(s), work(s);
    }
    SCENARIO(RELAXED, "synchronize_captured_relaxed")
    {
        say(CALL(cudaStreamSynchronize, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "query_captured") { say(CALL(cudaStreamQuery, s)), say_status(s); }
    SCENARIO(GLOBAL, "synchronize_other") { say(CALL(cudaStreamSynchronize, t)), say_status(s); }
    SCENARIO(GLOBAL, "query_other") { say(CALL(cudaStreamQuery, t)), say_status(s); }
    SCENARIO(GLOBAL, "synchronize_legacy")
    {
        say(CALL(cudaStreamSynchronize, NULL)), say_status(s);
    }
    SCENARIO(GLOBAL, "device_synchronize") { say(CALL(cudaDeviceSynchronize)), say_status(s); }
    SCENARIO(THREAD_LOCAL, "device_synchronize_local")
    {
        say(CALL(cudaDeviceSynchronize)), say_status(s);
    }
    SCENARIO(RELAXED, "device_synchronize_relaxed")
    {
        say(CALL(cudaDeviceSynchronize)), say_status(s);
    }
    SCENARIO(GLOBAL, "query_captured_event")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaEventQuery, e)), say_status(s);
    }
    SCENARIO(RELAXED, "synchronize_captured_event")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaEventSynchronize, e)),
            say_status(s);
    }
    SCENARIO(GLOBAL, "query_plain_event")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaEventQuery, e)), say_status(s);
    }
    SCENARIO(THREAD_LOCAL, "query_plain_event_local")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaEventQuery, e)), say_status(s);
    }
    SCENARIO(RELAXED, "query_plain_event_relaxed")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaStreamSynchronize, t)),
            say(CALL(cudaEventQuery, e)), say_status(s);
    }
    SCENARIO(GLOBAL, "synchronize_plain_event")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaEventSynchronize, e)), say_status(s);
    }
    SCENARIO(GLOBAL, "query_unrecorded_event") { say(CALL(cudaEventQuery, e)), say_status(s); }
}

static void memory_calls(void)
{
    void *got = NULL;
    size_t a, b;
    SCENARIO(GLOBAL, "malloc") { say(CALL(cudaMalloc, &got, BYTES)), say_status(s); }
    SCENARIO(THREAD_LOCAL, "malloc_local") { say(CALL(cudaMalloc, &got, BYTES)), say_status(s); }
    SCENARIO(RELAXED, "malloc_relaxed") { say(CALL(cudaMalloc, &got, BYTES)), say_status(s); }
    SCENARIO(GLOBAL, "malloc_exchanged")
    {
        int mode = RELAXED;
        say(CALL(cudaThreadExchangeStreamCaptureMode, &mode));
        say(mode);
        say(CALL(cudaMalloc, &got, BYTES));
        say(CALL(cudaThreadExchangeStreamCaptureMode, &mode));
        say(mode);
    }
    SCENARIO(GLOBAL, "free") { say(CALL(cudaFree, NULL)), say_status(s); }
    CALL(cudaMalloc, &got, BYTES);
    SCENARIO(GLOBAL, "free_memory") { say(CALL(cudaFree, got)), say_status(s); }
    SCENARIO(GLOBAL, "host_alloc") { say(CALL(cudaHostAlloc, &got, BYTES, 0)), say_status(s); }
    SCENARIO(GLOBAL, "mem_info") { say(CALL(cudaMemGetInfo, &a, &b)), say_status(s); }
    SCENARIO(GLOBAL, "event_create")
    {
        say(CALL(cudaEventCreateWithFlags, &got, 0)), say_status(s);
    }
    SCENARIO(GLOBAL, "stream_create")
    {
        say(CALL(cudaStreamCreateWithFlags, &got, 1)), say_status(s);
    }
    SCENARIO(GLOBAL, "memcpy") { say(CALL(cudaMemcpy, memory, pageable, BYTES, 1)), say_status(s); }
    SCENARIO(RELAXED, "memcpy_relaxed")
    {
        say(CALL(cudaMemcpy, memory, pageable, BYTES, 1)), say_status(s);
    }
    SCENARIO(GLOBAL, "memset") { say(CALL(cudaMemset, memory, 0, BYTES)), say_status(s); }
    SCENARIO(GLOBAL, "memset_legacy") { work(NULL), say_status(s); }
    SCENARIO(GLOBAL, "memset_other") { work(t), say_status(s); }
    SCENARIO(GLOBAL, "copy_pageable_in")
    {
        say(CALL(cudaMemcpyAsync, memory, pageable, BYTES, 1, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "copy_pageable_out")
    {
        say(CALL(cudaMemcpyAsync, pageable, memory, BYTES, 2, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "copy_pinned_in")
    {
        say(CALL(cudaMemcpyAsync, memory, pinned, BYTES, 1, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "copy_pinned_out")
    {
        say(CALL(cudaMemcpyAsync, pinned, memory, BYTES, 2, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "copy_inside")
    {
        say(CALL(cudaMemcpyAsync, memory, (char *)memory + BYTES, BYTES, 3, s)), say_status(s);
    }
    SCENARIO(GLOBAL, "copy_nothing")
    {
        say(CALL(cudaMemcpyAsync, memory, (char *)memory + BYTES, 0, 3, s)), say_status(s);
    }
}

static void blocking_streams(void)
{
    void *other;
    CALL(cudaStreamCreateWithFlags, &other, 1);
    SCENARIO(-1, "legacy_beside_blocking")
    {
        CALL(cudaStreamDestroy, s);
        CALL(cudaStreamCreateWithFlags, &s, 0);
        say(CALL(cudaStreamBeginCapture, s, RELAXED));
        work(NULL);
        say_status(s);
    }
    SCENARIO(-1, "record_legacy_beside_blocking")
    {
        CALL(cudaStreamDestroy, s);
        CALL(cudaStreamCreateWithFlags, &s, 0);
        say(CALL(cudaStreamBeginCapture, s, RELAXED));
        say(CALL(cudaEventRecord, e, NULL));
        say_status(s);
    }
    SCENARIO(-1, "memcpy_beside_blocking")
    {
        CALL(cudaStreamDestroy, s);
        CALL(cudaStreamCreateWithFlags, &s, 0);
        say(CALL(cudaStreamBeginCapture, s, RELAXED));
        say(CALL(cudaMemcpy, memory, pageable, BYTES, 1));
        say_status(s);
    }
    SCENARIO(RELAXED, "wait_on_legacy_event")
    {
        say(CALL(cudaEventRecord, e, NULL)), say(CALL(cudaStreamWaitEvent, s, e, 0)), say_status(s);
    }
}

static void forks(void)
{
    void *u, *second = NULL;
    CALL(cudaStreamCreateWithFlags, &u, 1);
    SCENARIO(GLOBAL, "fork_join")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0)),
            say_status(t);
        work(t), work(s), say(CALL(cudaEventRecord, f, t)), say(CALL(cudaStreamWaitEvent, s, f, 0)),
            work(s);
    }
    SCENARIO(GLOBAL, "fork_join_empty")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0));
        say(CALL(cudaEventRecord, f, t)), say(CALL(cudaStreamWaitEvent, s, f, 0));
    }
    SCENARIO(GLOBAL, "fork_unjoined")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0)), work(t);
    }
    SCENARIO(GLOBAL, "fork_unjoined_empty")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0));
    }
    SCENARIO(GLOBAL, "fork_worked_after_join")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0)), work(t);
        say(CALL(cudaEventRecord, f, t)), say(CALL(cudaStreamWaitEvent, s, f, 0)), work(t);
    }
    SCENARIO(GLOBAL, "fork_before_any_work")
    {
        say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0)), work(t);
        say(CALL(cudaEventRecord, f, t)), say(CALL(cudaStreamWaitEvent, s, f, 0));
    }
    SCENARIO(GLOBAL, "end_on_fork")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamWaitEvent, t, e, 0));
        say(CALL(cudaStreamEndCapture, t, &second)), say_status(t), say_status(s);
    }
    SCENARIO(GLOBAL, "wait_plain_event")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaStreamWaitEvent, s, e, 0)), say_status(s);
    }
    SCENARIO(GLOBAL, "wait_unrecorded_event")
    {
        say(CALL(cudaStreamWaitEvent, s, e, 0)), say_status(s);
    }
    SCENARIO(GLOBAL, "wait_external")
    {
        say(CALL(cudaEventRecord, e, t)), say(CALL(cudaStreamWaitEvent, s, e, 1)), work(s),
            say_status(s);
    }
    SCENARIO(GLOBAL, "record_external")
    {
        work(s), say(CALL(cudaEventRecordWithFlags, e, s, 1)), work(s),
            say(CALL(cudaStreamWaitEvent, t, e, 0)), say_status(t);
    }
    SCENARIO(GLOBAL, "merge")
    {
        work(s), say(CALL(cudaStreamBeginCapture, u, GLOBAL)),
            say(CALL(cudaMemsetAsync, memory, 0, 8, u)), say(CALL(cudaEventRecord, e, u));
        say(CALL(cudaStreamWaitEvent, s, e, 0)), say_status(s), say_status(u);
        say(CALL(cudaStreamEndCapture, u, &second));
    }
    SCENARIO(GLOBAL, "wait_ended_event")
    {
        work(s), say(CALL(cudaEventRecord, e, s)), say(CALL(cudaStreamEndCapture, s, &second));
        say(CALL(cudaStreamWaitEvent, t, e, 0)), say(CALL(cudaEventQuery, e)),
            say(CALL(cudaEventSynchronize, e));
        say(CALL(cudaStreamBeginCapture, s, GLOBAL)), say(CALL(cudaStreamWaitEvent, s, e, 0)),
            say_status(s);
    }
}

static void threads(void)
{
    int none = -1, local = THREAD_LOCAL, relaxed = RELAXED;
    SCENARIO(GLOBAL, "thread_global")
    {
        say(CALL(cudaEventRecord, f, t)), on_other_thread(other_mallocs, &none), say_status(s);
    }
    SCENARIO(GLOBAL, "thread_local")
    {
        say(CALL(cudaEventRecord, f, t)), on_other_thread(other_mallocs, &local), say_status(s);
    }
    SCENARIO(GLOBAL, "thread_relaxed")
    {
        say(CALL(cudaEventRecord, f, t)), on_other_thread(other_mallocs, &relaxed), say_status(s);
    }
    SCENARIO(THREAD_LOCAL, "thread_beside_local")
    {
        say(CALL(cudaEventRecord, f, t)), on_other_thread(other_mallocs, &none), say_status(s);
    }
    SCENARIO(GLOBAL, "thread_ends_global")
    {
        work(s), on_other_thread(other_ends, NULL), say_status(s);
    }
    SCENARIO(RELAXED, "thread_ends_relaxed")
    {
        work(s), on_other_thread(other_ends, NULL), say_status(s);
    }
}

static void graphs(void)
{
    void *empty = NULL, *copy = NULL, *node[4];
    size_t count = 4;
    SCENARIO(GLOBAL, "launch")
    {
        work(s), work(s);
        say(CALL(cudaStreamEndCapture, s, &graph));
        say(CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0));
        say(CALL(cudaGraphUpload, exec, s));
        say(CALL(cudaGraphLaunch, exec, s));
        say(CALL(cudaGraphDestroy, graph));
        say(CALL(cudaGraphLaunch, exec, s));
        say(CALL(cudaGraphLaunch, exec, t));
        say(CALL(cudaStreamSynchronize, s));
        say(CALL(cudaGraphExecDestroy, exec));
        say(CALL(cudaStreamBeginCapture, s, GLOBAL));
    }
    SCENARIO(GLOBAL, "dependencies")
    {
        work(s), work(s);
        say(CALL(cudaStreamEndCapture, s, &graph));
        say(CALL(cudaGraphGetNodes, graph, node, &count));
        printf(" count=%zu", count);
        for (size_t i = 0; i < count; i++) {
            size_t before = 0;
            say(CALL(cudaGraphNodeGetDependencies, node[i], NULL, NULL, &before));
            printf(" before=%zu", before);
        }
        say(CALL(cudaGraphClone, &copy, graph));
        say(CALL(cudaGraphDestroy, copy));
        say(CALL(cudaStreamBeginCapture, s, GLOBAL));
    }
    SCENARIO(-1, "empty_graph")
    {
        say(CALL(cudaGraphCreate, &empty, 0));
        say(CALL(cudaGraphInstantiateWithFlags, &exec, empty, 0));
        say(CALL(cudaGraphLaunch, exec, s));
        say(CALL(cudaStreamSynchronize, s));
        say(CALL(cudaGraphDestroy, empty));
        say(CALL(cudaGraphExecDestroy, exec));
    }
    SCENARIO(GLOBAL, "captured_launch")
    {
        work(s), work(s);
        say(CALL(cudaStreamEndCapture, s, &graph));
        say(CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0));
        say(CALL(cudaStreamBeginCapture, s, GLOBAL));
        work(s);
        say(CALL(cudaGraphLaunch, exec, s));
    }
    SCENARIO(-1, "nothing_there")
    {
        say(CALL(cudaGraphInstantiateWithFlags, &exec, NULL, 0));
        say(CALL(cudaGraphLaunch, NULL, s));
        say(CALL(cudaGraphDestroy, NULL));
        say(CALL(cudaGraphExecDestroy, NULL));
        say(CALL(cudaStreamBeginCapture, s, GLOBAL));
        say(CALL(cudaStreamEndCapture, s, NULL));
    }
}

static void destroyed(void *semaphore) { sem_post(semaphore); }

/* As PyTorch keeps what a captured collective needs: the graph that is being captured owns it. */
static void user_objects(void)
{
    enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };
    void *object, *building = NULL;
    sem_t gone;
    sem_init(&gone, 0, 0);
    SCENARIO(GLOBAL, "user_object")
    {
        CALL(cudaStreamGetCaptureInfo, s, &status, NULL, &building, NULL, NULL, NULL);
        say(CALL(cudaUserObjectCreate, &object, &gone, destroyed, 1, NO_DESTRUCTOR_SYNC));
        say(CALL(cudaGraphRetainUserObject, building, object, 1, MOVE));
        say(CALL(cudaStreamEndCapture, s, &graph));
        say(CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0));
        say(CALL(cudaGraphDestroy, graph));
        say(CALL(cudaGraphLaunch, exec, s));
        say(CALL(cudaStreamSynchronize, s));
        printf(" early=%d", sem_trywait(&gone) == 0);
        say(CALL(cudaGraphExecDestroy, exec));
        printf(" late=%d", sem_wait(&gone) == 0);
        CALL(cudaStreamBeginCapture, s, GLOBAL);
    }
    SCENARIO(GLOBAL, "user_object_shared")
    {
        CALL(cudaStreamGetCaptureInfo, s, &status, NULL, &building, NULL, NULL, NULL);
        say(CALL(cudaUserObjectCreate, &object, &gone, destroyed, 1, NO_DESTRUCTOR_SYNC));
        say(CALL(cudaGraphRetainUserObject, building, object, 1, 0));
        say(CALL(cudaUserObjectRetain, object, 1));
        say(CALL(cudaUserObjectRelease, object, 2));
        CALL(cudaStreamSynchronize, s); /* spoils the capture, so the graph is lost at its end */
        say(CALL(cudaStreamEndCapture, s, &graph));
        printf(" lost=%d", sem_wait(&gone) == 0);
        CALL(cudaStreamBeginCapture, s, GLOBAL);
    }
    SCENARIO(-1, "user_object_wrong")
    {
        say(CALL(cudaUserObjectCreate, &object, &gone, destroyed, 1, 0));
        say(CALL(cudaUserObjectCreate, &object, &gone, destroyed, 0, NO_DESTRUCTOR_SYNC));
        say(CALL(cudaGraphRetainUserObject, NULL, NULL, 1, MOVE));
        say(CALL(cudaUserObjectRelease, NULL, 1));
    }
}

static void run(void)
{
    CALL(cudaMalloc, &memory, 2 * BYTES);
    CALL(cudaHostAlloc, &pinned, BYTES, 0);
    CALL(cudaStreamCreateWithFlags, &blocking, 0);
    status_of_captures();
    waiting();
    memory_calls();
    blocking_streams();
    forks();
    threads();
    graphs();
    user_objects();
}
