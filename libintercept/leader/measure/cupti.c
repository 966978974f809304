/* cupti.c - reads NVIDIA's activity records: what ran on the GPU, when, and for which call.
 *
 * Why it exists: only CUPTI knows the durations of kernels in context. External correlation tells
 * which call a record belongs to: an id that is pushed around a call comes back with the
 * correlation number of every driver or runtime call inside it, but only if records of such calls
 * are enabled too. So the calls that start GPU work are enabled one by one, and all calls only if
 * that is not enough. Layouts and numbers are facts of cupti_activity.h, cupti_*_cbid.h and
 * cupti_result.h (CUpti_ActivityKernel9 to 11, Memcpy6, Memset4, ExternalCorrelation); the members
 * that are read here lie at the same places in CUDA 12.8, 13.0 and 13.2 (a test compares them with
 * the installed headers). Rule: records arrive on any thread, including CUPTI's own, so there is
 * one lock and no CUDA call under it. */
#include "base/environment.h"
#include "base/log.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* CUptiResult */
enum { SUCCESS = 0, MAX_LIMIT_REACHED = 12 };
/* CUpti_ActivityKind */
enum {
    MEMCPY = 1,
    MEMSET = 2,
    KERNEL = 3,
    DRIVER = 4,
    RUNTIME = 5,
    CONCURRENT_KERNEL = 10,
    EXTERNAL = 39
};
/* CUpti_ExternalCorrelationKind; we use one that others are unlikely to push */
enum { CUSTOM0 = 3 };
enum { BUFFER_BYTES = 1 << 19, SPARE_BUFFERS = 8 };
/* cuptiGetVersion: a number of its own up to CUDA 12 (20 is 12.2, 26 is 12.8), later CUDA's */
enum { OLDEST = 20, NEWEST_OF_12 = 99, OLDEST_OF_13 = 130000, NEWEST = 139999 };
#define LONGEST_NS 600000000000ull /* no kernel takes ten minutes */
/* a kernel that ran more than an hour ago means that the record's layout is another one */
#define OLDEST_NS 3600000000000ull

static struct {
    int (*GetVersion)(uint32_t *);
    int (*GetResultString)(int, const char **);
    int (*GetTimestamp)(uint64_t *);
    int (*ActivityEnable)(int);
    int (*ActivityDisable)(int);
    int (*ActivityRegisterCallbacks)(void (*)(uint8_t **, size_t *, size_t *),
                                     void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
    int (*ActivityGetNextRecord)(uint8_t *, size_t, unsigned char **);
    int (*ActivityGetNumDroppedRecords)(void *, uint32_t, size_t *);
    int (*ActivityFlushAll)(uint32_t);
    int (*ActivityPushExternalCorrelationId)(int, uint64_t);
    int (*ActivityPopExternalCorrelationId)(int, uint64_t *);
    int (*ActivityEnableDriverApi)(uint32_t, uint8_t); /* since CUDA 12.4 */
    int (*ActivityEnableRuntimeApi)(uint32_t, uint8_t);
    int (*GetStreamIdEx)(void *, void *, uint8_t, uint32_t *);
} cupti;

/* Which driver and runtime calls make records, from few to all. The first choice that brings
 * external ids is used. */
enum call_records { CALLS_THAT_START_WORK, DRIVER_CALLS, ALL_CALLS, CALL_RECORDS };
static enum call_records call_records;

static pthread_mutex_t records_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ph_records arrived;
static uint8_t *spare[SPARE_BUFFERS];
static int spares;
/* at: its latest record in `arrived`, if any */
static struct {
    bool known, any;
    uint32_t stream;
    size_t at;
} filler;
/* CUPTI's clock minus CLOCK_REALTIME; 0 by default */
static _Atomic int64_t clock_offset;

/* ---- loading ---- */
static void *symbol(void *library, const char *name, bool needed)
{
    void *address = dlsym(library, name);
    if (!address && needed)
        ph_die("libcupti lacks %s: a CUPTI of CUDA 12.2 to 13 is needed to lead; name its path in "
               "PHANTORA_CUPTI",
               name);
    return address;
}

/* The CUPTI that torch has loaded, else one that the loader finds. */
static void *find_library(void)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    for (int loaded = 1; loaded >= 0; loaded--)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            void *library = dlopen(names[i], RTLD_NOW | (loaded ? RTLD_NOLOAD : RTLD_LOCAL));
            if (library) return library;
        }
    return NULL;
}

static void load(void)
{
    const char *path = ph_env("PHANTORA_CUPTI");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : find_library();
    if (!library)
        ph_die(
            "cannot open CUPTI, which kernel times come from: %s; name its path in PHANTORA_CUPTI",
            dlerror());
#define LOAD(name, needed) \
    cupti.name = (__typeof__(cupti.name))symbol(library, "cupti" #name, needed)
    LOAD(GetVersion, true), LOAD(GetResultString, true), LOAD(GetTimestamp, true),
        LOAD(ActivityEnable, true), LOAD(ActivityDisable, true);
    LOAD(ActivityRegisterCallbacks, true), LOAD(ActivityGetNextRecord, true),
        LOAD(ActivityGetNumDroppedRecords, true), LOAD(ActivityFlushAll, true);
    LOAD(ActivityPushExternalCorrelationId, true), LOAD(ActivityPopExternalCorrelationId, true);
    LOAD(ActivityEnableDriverApi, false), LOAD(ActivityEnableRuntimeApi, false),
        LOAD(GetStreamIdEx, false);
#undef LOAD
}

static void check(int status, const char *what)
{
    const char *text = NULL;
    if (status == SUCCESS) return;
    cupti.GetResultString(status, &text);
    ph_die("CUPTI: %s failed with %d (%s): kernels cannot be timed; is another profiler attached "
           "to this process?",
           what, status, text ? text : "unknown");
}

/* ---- clocks ---- */
static uint64_t realtime(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t ph_cupti_now(void)
{
    return realtime() + (uint64_t)atomic_load_explicit(&clock_offset, memory_order_relaxed);
}

static void compare_clocks(void)
{
    uint64_t theirs = 0, before = realtime();
    check(cupti.GetTimestamp(&theirs), "cuptiGetTimestamp");
    uint64_t after = realtime();
    atomic_store(&clock_offset, (int64_t)(theirs - (before + (after - before) / 2)));
}

/* ---- records ---- */
static uint32_t u32(const unsigned char *record, size_t offset)
{
    uint32_t value;
    memcpy(&value, record + offset, 4);
    return value;
}

static uint64_t u64(const unsigned char *record, size_t offset)
{
    uint64_t value;
    memcpy(&value, record + offset, 8);
    return value;
}

static void *room(void *array, size_t used, size_t *capacity, size_t size)
{
    if (used < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 4096;
    void *more = realloc(array, *capacity * size);
    if (!more) ph_die("out of host memory for the records of %zu kernels", *capacity);
    return more;
}

/* The filler's pieces follow each other closely, so minutes of them become one record. Only their
 * overlap with other work matters. */
static bool joins_locked(const struct ph_activity *activity)
{
    enum { APART_NS = 100000 };
    if (!filler.any || activity->start < arrived.activity[filler.at].start ||
        activity->start > arrived.activity[filler.at].end + APART_NS)
        return false;
    if (activity->end > arrived.activity[filler.at].end)
        arrived.activity[filler.at].end = activity->end;
    return true;
}

void ph_cupti_filler(void *stream)
{
    uint32_t number;
    /* otherwise each piece has its own record */
    if (!cupti.GetStreamIdEx || cupti.GetStreamIdEx(NULL, stream, 0, &number) != SUCCESS) return;
    pthread_mutex_lock(&records_lock);
    filler.known = true;
    filler.stream = number;
    pthread_mutex_unlock(&records_lock);
}

static void add_activity_locked(const unsigned char *record, size_t stream_at,
                                size_t correlation_at)
{
    struct ph_activity activity = {u64(record, 16), u64(record, 24), u32(record, correlation_at),
                                   u32(record, stream_at)};
    uint64_t now = ph_cupti_now();
    bool recent = activity.end < now + OLDEST_NS && activity.end > now - OLDEST_NS;
    bool fills = filler.known && activity.stream == filler.stream;
    if (activity.start == 0 || activity.end < activity.start ||
        activity.end - activity.start > LONGEST_NS || !recent) {
        arrived.implausible += !fills;
        return;
    }
    if (fills && joins_locked(&activity)) return;
    if (fills) filler.any = true, filler.at = arrived.activities;
    arrived.activity =
        room(arrived.activity, arrived.activities, &arrived.activity_room, sizeof activity);
    arrived.activity[arrived.activities++] = activity;
}

static void add_locked(const unsigned char *record)
{
    switch (u32(record, 0)) {
    case KERNEL:
    case CONCURRENT_KERNEL: add_activity_locked(record, 48, 92); break;
    case MEMCPY:
    case MEMSET: add_activity_locked(record, 40, 44); break;
    case EXTERNAL:
        if (u32(record, 4) != CUSTOM0) break;
        arrived.external = room(arrived.external, arrived.externals, &arrived.external_room,
                                sizeof *arrived.external);
        arrived.external[arrived.externals++] =
            (struct ph_external){u64(record, 8), u32(record, 16)};
        break;
    default:
        break; /* driver and runtime calls: enabled only for the external ids that come with them */
    }
}

static void give_buffer(uint8_t **buffer, size_t *bytes, size_t *records)
{
    void *fresh = NULL;
    pthread_mutex_lock(&records_lock);
    if (spares) fresh = spare[--spares];
    pthread_mutex_unlock(&records_lock);
    /* CUPTI counts the records that it drops */
    if (!fresh && posix_memalign(&fresh, 8, BUFFER_BYTES) != 0) fresh = NULL;
    *buffer = fresh;
    *bytes = fresh ? BUFFER_BYTES : 0;
    *records = 0;
}

static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    unsigned char *record = NULL;
    (void)context, (void)stream, (void)bytes;
    pthread_mutex_lock(&records_lock);
    while (valid && cupti.ActivityGetNextRecord(buffer, valid, &record) == SUCCESS)
        add_locked(record);
    if (spares < SPARE_BUFFERS) spare[spares++] = buffer, buffer = NULL;
    pthread_mutex_unlock(&records_lock);
    free(buffer);
}

void ph_cupti_flush(struct ph_records *records, bool all)
{
    size_t dropped = 0;
    check(cupti.ActivityFlushAll(all), "cuptiActivityFlushAll");
    if (cupti.ActivityGetNumDroppedRecords(NULL, 0, &dropped) != SUCCESS) dropped = 0;
    compare_clocks();
    pthread_mutex_lock(&records_lock);
    for (size_t i = 0; i < arrived.activities; i++) {
        records->activity = room(records->activity, records->activities, &records->activity_room,
                                 sizeof *records->activity);
        records->activity[records->activities++] = arrived.activity[i];
    }
    for (size_t i = 0; i < arrived.externals; i++) {
        records->external = room(records->external, records->externals, &records->external_room,
                                 sizeof *records->external);
        records->external[records->externals++] = arrived.external[i];
    }
    records->dropped += dropped;
    records->implausible += arrived.implausible;
    arrived.activities = arrived.externals = 0;
    filler.any = false;
    arrived.implausible = 0;
    pthread_mutex_unlock(&records_lock);
}

/* ---- switching on and off ---- */
struct range {
    uint32_t first, last;
};

/* Calls that start GPU work, by callback id: launches, copies, fills, graphs. */
static const struct range runtime_calls[] = {
    {31, 52},   {142, 145}, {160, 163}, {211, 211}, {214, 236}, {243, 246}, {249, 250},
    {269, 270}, {311, 312}, {430, 431}, {482, 485}, {505, 506}, {509, 512}};
static const struct range driver_calls[] = {
    {43, 81},   {115, 117}, {216, 226}, {248, 254}, {276, 294}, {305, 307}, {318, 321},
    {397, 433}, {442, 442}, {477, 478}, {514, 515}, {652, 653}, {776, 779}, {796, 799}};

static void calls(int (*enable)(uint32_t, uint8_t), const struct range *range, size_t ranges,
                  bool on)
{
    for (size_t i = 0; i < ranges; i++)
        for (uint32_t id = range[i].first; id <= range[i].last; id++)
            enable(
                id,
                on); /* an id that this release does not have is refused, which does not matter */
}

static void switch_kind(int kind, bool on, const char *what)
{
    check(on ? cupti.ActivityEnable(kind) : cupti.ActivityDisable(kind), what);
}

static void switch_calls(bool on)
{
    if (call_records == CALLS_THAT_START_WORK) {
        calls(cupti.ActivityEnableRuntimeApi, runtime_calls,
              sizeof runtime_calls / sizeof *runtime_calls, on);
        calls(cupti.ActivityEnableDriverApi, driver_calls,
              sizeof driver_calls / sizeof *driver_calls, on);
    } else {
        switch_kind(DRIVER, on, "switching the records of driver calls");
        if (call_records == ALL_CALLS)
            switch_kind(RUNTIME, on, "switching the records of runtime calls");
    }
}

void ph_cupti_observe(bool on)
{
    /* makes no records of its own, so it stays on */
    if (on) switch_kind(EXTERNAL, true, "switching external correlation on");
    switch_kind(MEMCPY, on, "switching the records of copies");
    switch_kind(MEMSET, on, "switching the records of fills");
    switch_kind(CONCURRENT_KERNEL, on, "switching the records of kernels");
    switch_calls(on);
}

bool ph_cupti_escalate(void)
{
    if (call_records + 1 == CALL_RECORDS) return false;
    ph_cupti_observe(false);
    call_records++;
    ph_cupti_observe(true);
    ph_warn("CUPTI reports some launches only with %s recorded: the leader is slower for it",
            call_records == DRIVER_CALLS ? "driver calls" : "all calls");
    return true;
}

/* A job can continue without a sample, so neither is fatal. ph_cupti_start has checked that they
 * work. */
void ph_cupti_push(uint64_t id)
{
    int status = cupti.ActivityPushExternalCorrelationId(CUSTOM0, id);
    if (status != SUCCESS)
        ph_warn("CUPTI takes no external correlation id (%d): launches give no durations", status);
}

void ph_cupti_pop(void)
{
    uint64_t id;
    int status = cupti.ActivityPopExternalCorrelationId(CUSTOM0, &id);
    if (status != SUCCESS)
        ph_warn("CUPTI gives no external correlation id back (%d): launches give no durations",
                status);
}

/* ---- the check that CUPTI works ---- */
int cudaMalloc(void **pointer, size_t bytes);
int cudaFree(void *pointer);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
int cudaMemsetAsync(void *pointer, int value, size_t bytes, void *stream);

enum { PROOF_BYTES = 4096, NON_BLOCKING = 1, RUNTIME_PROOF = 2, DRIVER_PROOF = 3 };

static int proof_activities(const struct ph_records *records, uint64_t id)
{
    int found = 0;
    for (size_t i = 0; i < records->externals; i++)
        for (size_t j = 0; j < records->activities && records->external[i].id == id; j++)
            found += records->activity[j].correlation == records->external[i].correlation;
    return found;
}

/* One fill through the runtime, as PyTorch's own kernels are issued, and one through the driver, as
 * cuBLAS's are. False: one of them did not come back with its id. */
static bool prove(void *stream, void *memory, bool last)
{
    int (*driver_fill)(uintptr_t, unsigned char, size_t, void *) =
        (int (*)(uintptr_t, unsigned char, size_t, void *))ph_real_maybe("cuMemsetD8Async");
    struct ph_records records = {0};
    ph_cupti_push(RUNTIME_PROOF);
    int status = PH_REAL(cudaMemsetAsync)(memory, 0, PROOF_BYTES, stream);
    ph_cupti_pop();
    ph_cupti_push(DRIVER_PROOF);
    if (driver_fill && status == 0) status = driver_fill((uintptr_t)memory, 0, PROOF_BYTES, stream);
    ph_cupti_pop();
    if (status == 0) status = PH_REAL(cudaStreamSynchronize)(stream);
    if (status)
        ph_die("the leader cannot fill %d bytes on its GPU (CUDA error %d)", PROOF_BYTES, status);
    ph_cupti_flush(&records, true);
    int runtime = proof_activities(&records, RUNTIME_PROOF),
        driver = proof_activities(&records, DRIVER_PROOF);
    if (last && (runtime < 1 || (driver_fill && driver < 1)))
        ph_die("CUPTI does not time this GPU's work: two fills gave %zu records of work, %zu "
               "external ids, %llu without times; is another profiler attached?",
               records.activities, records.externals, (unsigned long long)records.implausible);
    free(records.activity), free(records.external);
    return runtime >= 1 && (!driver_fill || driver >= 1);
}

void ph_cupti_start(void)
{
    uint32_t version = 0;
    void *stream, *memory;
    load();
    check(cupti.GetVersion(&version), "cuptiGetVersion");
    if (version < OLDEST || version > NEWEST || (version > NEWEST_OF_12 && version < OLDEST_OF_13))
        ph_die(
            "CUPTI's interface version is %u; records are known for CUDA 12.2 to 13: name such a "
            "CUPTI in PHANTORA_CUPTI",
            version);
    compare_clocks();
    check(cupti.ActivityRegisterCallbacks(give_buffer, take_buffer),
          "cuptiActivityRegisterCallbacks");
    int status = PH_REAL(cudaStreamCreateWithFlags)(&stream, NON_BLOCKING);
    if (status == 0) status = PH_REAL(cudaMalloc)(&memory, PROOF_BYTES);
    if (status) ph_die("the leader cannot use its GPU (CUDA error %d)", status);
    for (call_records = cupti.ActivityEnableDriverApi && cupti.ActivityEnableRuntimeApi
                            ? CALLS_THAT_START_WORK
                            : DRIVER_CALLS;
         ; call_records++) {
        ph_cupti_observe(true);
        if (prove(stream, memory, call_records + 1 == CALL_RECORDS)) break;
        ph_cupti_observe(false);
    }
    if (ph_env("PHANTORA_LEAD_DEBUG"))
        ph_warn("leading: CUPTI %u, external ids with %s", version,
                call_records == CALLS_THAT_START_WORK ? "the calls that start work"
                : call_records == DRIVER_CALLS        ? "driver calls"
                                                      : "all calls");
    PH_REAL(cudaFree)(memory);
    PH_REAL(cudaStreamDestroy)(stream);
}
