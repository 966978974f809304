/* in_order.c - between a leader and the emulated GPU: runs host functions in the order of a
 * stream's copies, as a GPU does.
 *
 * Why it exists: the emulator runs host functions concurrently with its streams, so a leader over
 * it must wait for each. On a GPU the stream waits, and the host goes on. Here one queue serves all
 * streams, and a blocked function blocks everything behind it. That is stricter than a GPU. Issuing
 * work does not block the host; waiting for the GPU does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT const int phantora_host_functions_in_order = 1;

struct work {
    void (*function)(void *);
    void *data, *to, *stream;
    const void *from;
    size_t bytes;
    int kind;
    struct work *next;
};
static struct work *first, **last = &first;
static int open_works; /* queued or running */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static pthread_t worker;
static int started;

static int (*real_copy)(void *, const void *, size_t, int, void *);
static int (*real_wait)(void *);
static int (*real_attributes)(int *, const void *);

static void *run(void *unused)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first) pthread_cond_wait(&news, &lock);
        struct work *work = first;
        if (!(first = work->next)) last = &first;
        pthread_mutex_unlock(&lock);
        if (work->function)
            work->function(work->data);
        else
            real_copy(work->to, work->from, work->bytes, work->kind, work->stream);
        free(work);
        pthread_mutex_lock(&lock);
        open_works--;
        pthread_cond_broadcast(&news);
    }
    return unused;
}

static void start_locked(void)
{
    if (started) return;
    started = 1;
    real_copy =
        (int (*)(void *, const void *, size_t, int, void *))dlsym(RTLD_NEXT, "cudaMemcpyAsync");
    real_wait = (int (*)(void *))dlsym(RTLD_NEXT, "cudaStreamSynchronize");
    real_attributes = (int (*)(int *, const void *))dlsym(RTLD_NEXT, "cudaPointerGetAttributes");
    pthread_create(&worker, NULL, run, NULL);
    pthread_detach(worker);
}

static void queue_locked(struct work work)
{
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    copy->next = NULL;
    *last = copy;
    last = &copy->next;
    open_works++;
    pthread_cond_broadcast(&news);
}

static void drain_locked(void)
{
    while (open_works) pthread_cond_wait(&news, &lock);
}

EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
    pthread_mutex_lock(&lock);
    start_locked();
    queue_locked((struct work){.function = function, .data = data, .stream = stream});
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    int there[32] = {0}, here[32] = {0};
    pthread_mutex_lock(&lock);
    start_locked();
    real_attributes(there, to), real_attributes(here, from);
    if (open_works == 0 || pthread_equal(pthread_self(), worker)) {
        pthread_mutex_unlock(&lock);
        return real_copy(to, from, bytes, kind, stream);
    }
    queue_locked(
        (struct work){.to = to, .from = from, .bytes = bytes, .kind = kind, .stream = stream});
    if (there[0] == 0 || here[0] == 0) drain_locked(); /* pageable memory: the host waits */
    pthread_mutex_unlock(&lock);
    return 0;
}

EXPORT int cudaStreamSynchronize(void *stream)
{
    pthread_mutex_lock(&lock);
    start_locked();
    drain_locked();
    pthread_mutex_unlock(&lock);
    return real_wait(stream);
}

#define DRAINED(name)                                                   \
    EXPORT int name(void *handle)                                       \
    {                                                                   \
        int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, #name); \
        pthread_mutex_lock(&lock);                                      \
        start_locked();                                                 \
        drain_locked();                                                 \
        pthread_mutex_unlock(&lock);                                    \
        return next(handle);                                            \
    }
DRAINED(cudaEventSynchronize)
DRAINED(cudaDeviceSynchronize)
DRAINED(cudaFree)
