/* timeline.c - kernels on streams and the events between them, as `key value` lines; times in whole
 * nanoseconds. */
#include "kernel.h"

int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaStreamQuery(void *);
int cudaEventCreateWithFlags(void **, unsigned);
int cudaEventRecord(void *, void *);
int cudaEventQuery(void *);
int cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *);
int cudaDeviceSynchronize(void);

static void launch(void *stream, unsigned grid)
{
    int status = launch_kernel(stream, grid);
    if (status != 0) printf("launch_failed %d\n", status);
}

static long elapsed(void *from, void *to)
{
    float milliseconds = -1;
    int status = CALL(cudaEventElapsedTime, &milliseconds, from, to);
    return status != 0 ? -status : (long)((double)milliseconds * 1e6 + 0.5);
}

static void run(void)
{
    void *first, *second, *events[6];
    CALL(__cudaRegisterFatBinaryEnd, register_kernel());
    printf("streams %d\n", CALL(cudaStreamCreateWithFlags, &first, 1) |
                               CALL(cudaStreamCreateWithFlags, &second, 1));
    for (int i = 0; i < 6; i++) CALL(cudaEventCreateWithFlags, &events[i], 0);
    printf("unrecorded %ld\n", elapsed(events[0], events[1]));

    /* the stream is busy from here on, so the work that follows does not wait for the host */
    launch(first, 100);
    CALL(cudaEventRecord, events[0], first);
    for (int i = 0; i < 10; i++) launch(first, 100);
    CALL(cudaEventRecord, events[1], first);
    printf("pending %d %d\n", CALL(cudaEventQuery, events[1]), CALL(cudaStreamQuery, first));

    CALL(cudaStreamWaitEvent, second, events[1], 0);
    launch(second, 100);
    CALL(cudaEventRecord, events[2], second);
    launch(first, 200);
    CALL(cudaEventRecord, events[3], first);
    CALL(cudaDeviceSynchronize);
    printf("done %d %d\n", CALL(cudaEventQuery, events[1]), CALL(cudaStreamQuery, first));
    printf("ten %ld\n", elapsed(events[0], events[1]));
    printf("second_after_first %d\n", elapsed(events[1], events[2]) > 0);
    printf("side_by_side %d\n", elapsed(events[2], events[3]) < elapsed(events[1], events[3]));

    CALL(cudaEventRecord, events[4], first);
    CALL(cudaEventSynchronize, events[4]);
    CALL(cudaEventRecord, events[5], first);
    CALL(cudaStreamSynchronize, first);
    printf("idle %ld\n", elapsed(events[4], events[5]));
    printf("destroyed %d\n", CALL(cudaStreamDestroy, first) | CALL(cudaStreamDestroy, second));
}
