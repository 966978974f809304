/* A watchdog that sleeps as PyTorch's do, but for far longer: it looks only when it is woken. Built
 * as libtorch_cuda.so, because only the sleep of that library's watchdogs is shortened. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <time.h>

enum { LONG_S = 100000 };
int64_t _ZNSt6chrono3_V212system_clock3nowEv(void);
int cudaEventQuery(void *event);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int ncclCommGetAsyncError(void *comm, int *error);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static bool stop;
static int rounds, ready;
static void *event, *comm;
static bool named;

/* std::condition_variable::wait_for, as libstdc++ does it */
static bool sleep_long(void)
{
    int64_t until = _ZNSt6chrono3_V212system_clock3nowEv() + LONG_S * INT64_C(1000000000);
    struct timespec end = {until / 1000000000, until % 1000000000};
    pthread_mutex_lock(&lock);
    while (!stop && _ZNSt6chrono3_V212system_clock3nowEv() < until)
        pthread_cond_timedwait(&news, &lock, &end);
    bool over = stop;
    pthread_mutex_unlock(&lock);
    return !over;
}

static void *watch(void *unused)
{
    int mode = 1, error;
    if (named)
        prctl(PR_SET_NAME, "pt_nccl_watchdg");
    else
        cudaThreadExchangeStreamCaptureMode(&mode);
    while (sleep_long()) {
        if (event && cudaEventQuery(event) == 0) __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
        if (!named) ncclCommGetAsyncError(comm, &error);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}

static pthread_t thread;
void sleeper_start(void *the_event, void *the_comm, bool has_name)
{
    event = the_event, comm = the_comm, named = has_name;
    pthread_create(&thread, NULL, watch, NULL);
}
int sleeper_rounds(void) { return __atomic_load_n(&rounds, __ATOMIC_SEQ_CST); }
int sleeper_ready(void) { return __atomic_load_n(&ready, __ATOMIC_SEQ_CST); }
/* somebody else wakes it for nothing */
void sleeper_disturb(void) { pthread_cond_broadcast(&news); }
void sleeper_end(void)
{
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
}
