/* clang-format off */
/* queue.c - makes the calls of a script on standard input, one a line, and prints what the job would
 * see; times in nanoseconds.
 *
 *   k S N    launches a kernel of N blocks on stream S
 *   h S      copies from pinned memory to the device on stream S
 *   c S      all-reduces on stream S
 *   y S      synchronises stream S
 *   r E S    records event E on stream S
 *   q E      asks whether event E is over: 1 or 0
 *   w S E    stream S waits for event E
 *   t        reads the host's clock */
/* clang-format on */
#include "kernel.h"

enum { STREAMS = 4, EVENTS = 8 };
struct unique_id {
    char bytes[128];
};
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamSynchronize(void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaEventCreateWithFlags(void **, unsigned);
int cudaEventRecord(void *, void *);
int cudaEventQuery(void *);
int cudaMalloc(void **, size_t);
int cudaMallocHost(void **, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int ncclGetUniqueId(struct unique_id *);
int ncclCommInitRank(void **, int, struct unique_id, int);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
uint64_t phantora_elapsed_ns(void);

static void *streams[STREAMS], *events[EVENTS], *memory, *pinned, *comm;

static int act(char what, unsigned first, unsigned second)
{
    switch (what) {
    case 'k': return launch_kernel(streams[first % STREAMS], second);
    case 'h': return CALL(cudaMemcpyAsync, memory, pinned, 1 << 21, 1, streams[first % STREAMS]);
    case 'c':
        return CALL(ncclAllReduce, memory, (char *)memory + ((size_t)4 << 20), (size_t)1 << 20, 7,
                    0, comm, streams[first % STREAMS]);
    case 'r': return CALL(cudaEventRecord, events[first % EVENTS], streams[second % STREAMS]);
    case 'w':
        return CALL(cudaStreamWaitEvent, streams[first % STREAMS], events[second % EVENTS], 0);
    case 'y': return CALL(cudaStreamSynchronize, streams[first % STREAMS]);
    case 'q': printf("q %d\n", CALL(cudaEventQuery, events[first % EVENTS]) == 0); return 0;
    case 't': printf("t %lu\n", (unsigned long)CALL(phantora_elapsed_ns) - 1); return 0;
    default: return -1;
    }
}

static void run(void)
{
    struct unique_id id;
    char what;
    unsigned first, second;
    CALL(__cudaRegisterFatBinaryEnd, register_kernel());
    int failed =
        CALL(cudaMalloc, &memory, (size_t)8 << 20) | CALL(cudaMallocHost, &pinned, (size_t)1 << 21);
    failed |= CALL(ncclGetUniqueId, &id) | CALL(ncclCommInitRank, &comm, 1, id, 0);
    for (int i = 0; i < STREAMS; i++) failed |= CALL(cudaStreamCreateWithFlags, &streams[i], 1);
    for (int i = 0; i < EVENTS; i++) failed |= CALL(cudaEventCreateWithFlags, &events[i], 2);
    while (scanf(" %c %u %u", &what, &first, &second) == 3) failed |= act(what, first, second);
    fflush(stdout);
    if (failed) exit(1);
}
