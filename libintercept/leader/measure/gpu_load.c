/* gpu_load.c - keeps the GPU busy while the simulation blocks the job.
 *
 * Why it exists: a GPU that trains runs at its power limit, hundreds of MHz below its highest clock
 * (an H200: 1,450 to 1,800 of 1,980 MHz). A leader mostly waits for simulated ranks. Its GPU would
 * idle, stay at the highest clock, and matrix products and attention would come out up to 6 % too
 * short. So while a thread of the job waits for the hub, and the GPU is idle or waits for other
 * ranks' values, a filler gives it a training job's usual mix: products of bf16 matrices and copies
 * within its memory, about 3 : 1 in time, of normal numbers (zeros toggle no bits and cost no
 * power).
 *
 * Rules: the filler stops before the job goes on. A thread that returns from the hub, or issues
 * observed work, waits for what is queued: two pieces, some 300 us. A call that overlaps the filler
 * all the same gives no sample (samples.c), because the filler's records have no external id.
 * Memory is allocated once, only while no stream waits for other ranks (allocating may wait for the
 * GPU), and freed when the job needs it. A failure here must not affect the job: the filler then
 * ends with one warning. PHANTORA_LEAD_GPU_LOAD=0 switches it off. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "leader/measure/gpu_load.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/real_time.h"
#include "leader/gpu/random.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ORDER = 4096, NUMBERS_BYTES = 8 << 20, STREAMS = 64, PIECES = 2 };
/* driver_types.h */
enum {
    NON_BLOCKING = 1,
    BLOCKING_SYNC = 1,
    NO_TIMING = 2,
    DEVICE_TO_DEVICE = 3,
    HOST_TO_DEVICE = 1,
    RELAXED = 2
};
/* cublas_api.h, library_types.h, nccl.h */
enum { NOT_TRANSPOSED = 0, BF16_MATRIX = 14, COMPUTE_FP32 = 68, ANY_ALGORITHM = -1, NCCL_BF16 = 9 };
#define MATRIX_BYTES ((size_t)ORDER * ORDER * 2)
/* read and written: 256 MiB of traffic, 60 us at 4.4 TB/s; a product takes 200 us */
#define PASS_BYTES ((size_t)128 << 20)
#define ROOM_BYTES ((size_t)4 << 30) /* nothing is allocated when less is free */
#define TICK_NS 500000
#define HELD_NS 1000000ull /* the GPU does not cool in shorter waits */
/* allowed beyond the moment when the GPU should have finished all that it can */
#define DOUBT_NS 1000000ull
/* the longest wait of a thread that stops the filler: a GPU queue may be shared with a blocked
 * stream */
#define DRAIN_NS 5000000ull
#define END_NS 1000000000ull

int cudaStreamQuery(void *), cudaPeekAtLastError(void), cudaThreadExchangeStreamCaptureMode(int *),
    cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t), cudaFree(void *),
    cudaStreamCreateWithPriority(void **, unsigned, int), cudaStreamSynchronize(void *);
int cudaEventCreateWithFlags(void **, unsigned), cudaEventRecord(void *, void *),
    cudaEventSynchronize(void *);
int cudaDeviceGetStreamPriorityRange(int *, int *),
    cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cublasCreate_v2(void **), cublasSetStream_v2(void *, void *);
int cublasGemmEx(void *, int, int, int, int, int, const void *, const void *, int, int,
                 const void *, int, int, const void *, void *, int, int, int, int);

/* ---- the state of the job ---- */
/* threads that wait for the hub; of these, CUDA's threads in a result; calls that are measured for
 * the first time */
static _Atomic int held, receiving, forbidden;
static _Atomic uint64_t held_since, active_at, stops;
/* GPU time issued so far; when all of it should be done if nothing waits */
static _Atomic uint64_t issued, free_at;
/* guards the streams, and is held while one is queried */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static void *streams[STREAMS];
static int stream_count;
static bool streams_more; /* more streams than fit: then idleness cannot be determined */
static _Atomic uint64_t generation = 1;

/* ---- the state of the filler ---- */
static _Atomic enum { AT_REST, PREPARING, RUNNING } state;
static _Atomic bool over, running;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t state_news = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t load_ns;
/* Set by the filler's thread, or by ph_gpu_load_release once the filler runs no more. Its thread
 * may still look. */
static _Atomic bool ready;
static void *stream, *event[PIECES], *cublas, *matrix[3], *from, *to;

uint64_t ph_gpu_load_ns(void) { return load_ns; }
uint64_t ph_gpu_load_issued(void) { return atomic_load(&issued); }

/* ---- called for the job ---- */
static void rest(void)
{
    pthread_mutex_lock(&state_lock);
    atomic_store(&state, AT_REST);
    pthread_cond_broadcast(&state_news);
    pthread_mutex_unlock(&state_lock);
}

/* Waits for it have a time-out, which may not depend on a clock that an administrator sets. */
static void make_state_news(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&state_news, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static bool wait_for_rest(uint64_t patience)
{
    uint64_t end = ph_real_ns() + patience;
    struct timespec until = {(time_t)(end / 1000000000ull), (long)(end % 1000000000ull)};
    int late = 0;
    pthread_mutex_lock(&state_lock);
    /* preparing never waits for the job */
    while (state == PREPARING) pthread_cond_wait(&state_news, &state_lock);
    while (state != AT_REST && late != ETIMEDOUT)
        late = pthread_cond_timedwait(&state_news, &state_lock, &until);
    bool rests = state == AT_REST;
    pthread_mutex_unlock(&state_lock);
    return rests;
}

void ph_gpu_load_stop(void)
{
    if (!atomic_load_explicit(&running, memory_order_relaxed)) return;
    atomic_store_explicit(&active_at, ph_real_ns(), memory_order_relaxed);
    /* before `state` is read; the filler writes `state` before it reads `stops` */
    atomic_fetch_add(&stops, 1);
    if (atomic_load(&state) != AT_REST) wait_for_rest(DRAIN_NS);
}

void ph_gpu_load_held(bool begins)
{
    if (begins) {
        if (atomic_fetch_add(&held, 1) == 0) atomic_store(&held_since, ph_real_ns());
    } else {
        atomic_fetch_sub(&held, 1);
        ph_gpu_load_stop();
    }
}

void ph_gpu_load_forbid(bool on) { atomic_fetch_add(&forbidden, on ? 1 : -1); }

static void busy_for(uint64_t work_ns)
{
    uint64_t now = ph_real_ns(), end = atomic_load_explicit(&free_at, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(&free_at, &end, (end > now ? end : now) + work_ns))
        continue;
}

void ph_gpu_load_saw(void *handle, uint64_t work_ns)
{
    static _Thread_local void *last;
    static _Thread_local uint64_t seen;
    if (!atomic_load_explicit(&running, memory_order_relaxed)) return;
    atomic_fetch_add_explicit(&issued, work_ns, memory_order_relaxed);
    busy_for(work_ns);
    if (last == handle && seen == atomic_load_explicit(&generation, memory_order_relaxed)) return;
    pthread_mutex_lock(&streams_lock);
    int i = 0;
    while (i < stream_count && streams[i] != handle) i++;
    if (i == stream_count && i < STREAMS)
        streams[stream_count++] = handle;
    else if (i == stream_count)
        streams_more = true;
    seen = generation;
    last = handle;
    pthread_mutex_unlock(&streams_lock);
}

void ph_gpu_load_copied(void *handle, size_t bytes)
{
    /* An H200's memory is over four times as fast. An estimate that is too long only delays the
     * filler. */
    enum { LAUNCH_NS = 2000, BYTES_PER_NS = 1000 };
    ph_gpu_load_saw(handle, LAUNCH_NS + bytes / BYTES_PER_NS);
}

void ph_gpu_load_gone(void *handle)
{
    ph_gpu_load_stop();
    pthread_mutex_lock(&streams_lock);
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == handle) streams[i] = streams[--stream_count];
    generation++;
    pthread_mutex_unlock(&streams_lock);
}

void ph_gpu_load_receiving(void) { atomic_fetch_add(&receiving, 1); }

/* Work that was issued after the result can only begin now. */
void ph_gpu_load_received(uint64_t before)
{
    busy_for(atomic_load(&issued) - before);
    atomic_fetch_sub(&receiving, 1);
}

/* ---- when the filler may run ---- */
/* Whether the streams have finished all their work. */
static bool streams_idle(void)
{
    pthread_mutex_lock(&streams_lock);
    bool idle = !streams_more;
    for (int i = 0; idle && i < stream_count; i++) idle = PH_REAL(cudaStreamQuery)(streams[i]) == 0;
    pthread_mutex_unlock(&streams_lock);
    return idle;
}

/* A stream that waits for values looks like one that works. If a result is pending and everything
 * else should be finished by now, the remaining work waits behind the result. */
static bool gpu_waits(uint64_t now)
{
    if (ph_lead_captures())
        return false; /* querying a stream that is being captured would break the capture */
    return streams_idle() ||
           (atomic_load(&receiving) > 0 && now > atomic_load(&free_at) + DOUBT_NS);
}

static bool held_up(uint64_t now)
{
    if (atomic_load(&held) == 0 || atomic_load(&forbidden)) return false;
    return now > atomic_load(&held_since) + HELD_NS && now > atomic_load(&active_at) + HELD_NS;
}

/* ---- the filler ---- */
static const char *step; /* of the filler's thread, for its one warning */
#define TRY(function, ...) (step = #function, PH_REAL(function)(__VA_ARGS__))

static bool failed(int error)
{
    char code[32] = "";
    if (error) snprintf(code, sizeof code, ": error %d", error);
    ph_warn("the GPU is not kept warm while the job waits (%s%s): kernels bound by computing may "
            "come out a few percent short",
            step, code);
    atomic_store(&over, true);
    return false;
}

/* Fills `at` with normal numbers: a table, doubled repeatedly. */
static int fill(void *at, size_t bytes, const void *numbers)
{
    int error = TRY(cudaMemcpyAsync, at, numbers, NUMBERS_BYTES, HOST_TO_DEVICE, stream);
    for (size_t done = NUMBERS_BYTES; done < bytes && !error; done *= 2) {
        size_t part = bytes - done < done ? bytes - done : done;
        error = TRY(cudaMemcpyAsync, (char *)at + done, at, part, DEVICE_TO_DEVICE, stream);
    }
    return error;
}

static int take_memory(void)
{
    int error = 0;
    for (int i = 0; i < 3 && !error; i++) error = TRY(cudaMalloc, &matrix[i], MATRIX_BYTES);
    if (!error) error = TRY(cudaMalloc, &from, PASS_BYTES);
    if (!error) error = TRY(cudaMalloc, &to, PASS_BYTES);
    return error;
}

static void give_memory(void)
{
    void **all[] = {&matrix[0], &matrix[1], &matrix[2], &from, &to};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (*all[i]) PH_REAL(cudaFree)(*all[i]);
        *all[i] = NULL;
    }
}

static bool prepare(void)
{
    int least = 0, greatest = 0, error;
    size_t room = 0, all = 0;
    if (ph_lead_awaited() || !streams_idle()) return false; /* try again later */
    if (!ph_real_loaded("cublasGemmEx")) {
        step = "cuBLAS is not loaded";
        return failed(0);
    }
    if ((error = TRY(cudaMemGetInfo, &room, &all))) return failed(error);
    if (room < ROOM_BYTES) {
        step = "less than 4 GiB of its memory is free";
        return failed(0);
    }
    void *numbers = malloc(NUMBERS_BYTES);
    if (!numbers) return step = "out of host memory", failed(0);
    ph_random_numbers(numbers, NUMBERS_BYTES, NCCL_BF16);
    error = TRY(cudaDeviceGetStreamPriorityRange, &least, &greatest);
    if (!error) error = TRY(cudaStreamCreateWithPriority, &stream, NON_BLOCKING, least);
    for (int i = 0; i < PIECES && !error; i++)
        error = TRY(cudaEventCreateWithFlags, &event[i], BLOCKING_SYNC | NO_TIMING);
    if (!error) error = TRY(cublasCreate_v2, &cublas);
    if (!error) error = TRY(cublasSetStream_v2, cublas, stream);
    if (!error) error = take_memory();
    for (int i = 0; i < 2 && !error; i++) error = fill(matrix[i], MATRIX_BYTES, numbers);
    if (!error) error = fill(from, PASS_BYTES, numbers);
    if (!error) error = TRY(cudaStreamSynchronize, stream);
    free(numbers);
    if (error) {
        give_memory();
        return failed(error);
    }
    ph_cupti_filler(stream);
    return ready = true;
}

static int piece(int which)
{
    static const float one = 1, zero = 0;
    int error = which == 0
                    ? TRY(cublasGemmEx, cublas, NOT_TRANSPOSED, NOT_TRANSPOSED, ORDER, ORDER, ORDER,
                          &one, matrix[0], BF16_MATRIX, ORDER, matrix[1], BF16_MATRIX, ORDER, &zero,
                          matrix[2], BF16_MATRIX, ORDER, COMPUTE_FP32, ANY_ALGORITHM)
                    : TRY(cudaMemcpyAsync, to, from, PASS_BYTES, DEVICE_TO_DEVICE, stream);
    return error ? error : TRY(cudaEventRecord, event[which], stream);
}

/* Keeps one piece running and one queued, until a thread stops it. */
static void run_filler(uint64_t since)
{
    uint64_t began = ph_real_ns();
    int error = piece(0);
    for (int next = 1; !error && atomic_load(&stops) == since && !over; next = !next) {
        error = piece(next);
        if (!error) error = TRY(cudaEventSynchronize, event[!next]);
    }
    int at_end = PH_REAL(cudaStreamSynchronize)(stream);
    if (error || at_end) failed(error ? error : at_end);
    load_ns += ph_real_ns() - began;
}

static void *filler_thread(void *unused)
{
    int mode = RELAXED;
    (void)unused;
    pthread_setname_np(pthread_self(), "phantora-load");
    ph_lead_not_the_job();
    PH_REAL(cudaThreadExchangeStreamCaptureMode)(&mode);
    while (!over) {
        nanosleep(&(struct timespec){0, TICK_NS}, NULL);
        uint64_t since = atomic_load(&stops), now = ph_real_ns();
        if (!held_up(now) || !gpu_waits(now)) continue;
        atomic_store(&state, ready ? RUNNING : PREPARING);
        if (atomic_load(&stops) == since && !over && (ready || prepare())) {
            atomic_store(&state, RUNNING);
            run_filler(since);
        }
        rest();
    }
    atomic_store(&running, false);
    rest();
    return NULL;
}

/* ---- start and end ---- */
void ph_gpu_load_allow(void)
{
    static _Atomic bool asked;
    const char *choice = ph_env("PHANTORA_LEAD_GPU_LOAD");
    pthread_t thread;
    if (atomic_exchange(&asked, true) || (choice && strcmp(choice, "0") == 0)) return;
    make_state_news();
    atomic_store(&running, true);
    if (pthread_create(&thread, NULL, filler_thread, NULL)) {
        atomic_store(&running, false);
        step = "no thread could be made";
        failed(0);
    } else {
        pthread_detach(thread);
    }
}

void ph_gpu_load_end(void)
{
    atomic_store(&over, true);
    ph_gpu_load_stop();
    if (!wait_for_rest(END_NS)) ph_warn("the GPU has not finished the work that kept it warm");
}

bool ph_gpu_load_release(void)
{
    /* freeing would wait for the GPU, which waits for other ranks */
    if (ph_lead_awaited()) return false;
    atomic_store(&over, true);
    ph_gpu_load_stop();
    pthread_mutex_lock(&state_lock);
    bool ours = ready && state == AT_REST;
    ready = false;
    pthread_mutex_unlock(&state_lock);
    if (!ours) return false;
    give_memory();
    ph_warn("the job needed the memory of the work that keeps the GPU warm: it is no longer "
            "kept warm");
    return true;
}

void ph_gpu_load_reset(void)
{
    pthread_mutex_init(&streams_lock, NULL);
    pthread_mutex_init(&state_lock, NULL);
    make_state_news();
    held = receiving = forbidden = 0;
    running = false; /* the thread belongs to the parent */
    state = AT_REST;
}
