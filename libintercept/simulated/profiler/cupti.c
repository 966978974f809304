/* simulated/profiler/cupti.c - CUPTI's activity interface, as PyTorch's profiler uses it.
 *
 * Why it exists: PyTorch's profiler (Kineto) asks NVIDIA's CUPTI for GPU activity. The real library
 * needs private tables of the driver. Here its records are made of what is simulated. Kineto gives
 * buffers, and reads the records in them through cuptiActivityGetNextRecord. Rule: records are
 * those of CUDA 12 and 13 (records.h). To PyTorch of another CUDA, and to any tool but PyTorch's
 * profiler, this refuses, and says what to use instead. The profiler ends with the converter of its
 * clock (clock.c), so records are made there, and handed over when they are asked for. */
#define PH_CLASS PH_SIMULATED
#define _GNU_SOURCE
#include "base/fork.h"
#include "base/log.h"
#include "base/protocol.gen.h"
#include "simulated/profiler/profile.h"
#include "simulated/profiler/records.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* CUptiResult */
enum {
    SUCCESS = 0,
    INVALID_PARAMETER = 1,
    MAX_LIMIT_REACHED = 12,
    INVALID_KIND = 21,
    NOT_SUPPORTED = 27
};
/* what cuptiGetVersion says in CUDA 12.8 and 13.0 */
enum { VERSION_12 = 26, VERSION_13 = 130000 };
enum { DRIVER_DOMAIN = 1, RUNTIME_DOMAIN = 2, RESOURCE_DOMAIN = 3 };
enum { CUSTOM0 = 3, CUSTOM1 = 4 }; /* CUpti_ExternalCorrelationKind */
enum { HTOD = 1, DTOH = 2, DTOD = 8, HTOH = 9, PTOP = 10 };
enum { CONTEXT = 1, BUFFERS = 4096 };
/* PyTorch's profiler takes a call for an operator if their numbers are the same, and counts work
 * twice. So the numbers of calls are beyond any of an operator. */
enum { FIRST_CORRELATION = 1 << 30 };

typedef void give_buffer(uint8_t **buffer, size_t *bytes, size_t *records);
typedef void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                         size_t valid);
static give_buffer *give;
static take_buffer *take;
static bool converts; /* Kineto converts the times of records as it does those of operators */
static bool enabled[PH_ACTIVITY_KINDS], wanted[PH_ACTIVITY_KINDS]; /* now; in this profile */
static bool ended;
static size_t dropped;

static struct {
    uint8_t *bytes;
    size_t size, used;
} buffer[BUFFERS];
static size_t buffers;
/* The profiler calls from one thread at a time; the lock is for tools that do not. */
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- who asks ---- */
static uint32_t version_of_cuda(void)
{
    static const struct {
        const char *name;
        uint32_t version;
    } libraries[] = {{"libcupti.so.13", VERSION_13}, {"libcupti.so.12", VERSION_12}};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        void *library = dlopen(libraries[i].name, RTLD_LAZY | RTLD_NOLOAD);
        if (!library) continue;
        dlclose(library);
        return libraries[i].version;
    }
    return 0;
}

static int refuse(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT; /* Kineto asks twice */
    const char *why = !version_of_cuda()      ? "CUPTI's records are known for CUDA 12 and 13"
                      : ph_forked()           ? "the process was forked from one that uses CUDA"
                      : !ph_profiler_clocks() ? "PyTorch's clocks are not where they were to 2.15"
                                              : "its log cannot be written";
    if (!atomic_flag_test_and_set(&said))
        ph_warn("torch.profiler sees no GPU activity here, and the CPU's in real time: %s; "
                "phantora-ns --trace DIR writes both as simulated",
                why);
    return NOT_SUPPORTED;
}

static bool serves(void) { return version_of_cuda() && !ph_forked() && ph_profiler_clocks(); }

PH_API(int, cuptiSubscribe, (void **subscriber, void *callback, void *data))
{
    static char only;
    (void)callback, (void)data;
    if (!subscriber) return INVALID_PARAMETER;
    *subscriber = serves() ? &only : NULL;
    return *subscriber ? SUCCESS : refuse();
}

PH_API(int, cuptiUnsubscribe, (void *subscriber))
{
    return subscriber ? SUCCESS : INVALID_PARAMETER;
}

/* What Kineto of torch 2.15 asks first. */
PH_API(int, cuptiGetVersion, (uint32_t *version))
{
    if (!version) return INVALID_PARAMETER;
    *version = serves() ? version_of_cuda() : 0;
    return *version ? SUCCESS : refuse();
}

PH_API(int, cuptiGetResultString, (int result, const char **text))
{
    if (!text) return INVALID_PARAMETER;
    *text = result == NOT_SUPPORTED       ? "not simulated"
            : result == MAX_LIMIT_REACHED ? "CUPTI_ERROR_MAX_LIMIT_REACHED"
            : result                      ? "CUPTI failed"
                                          : "CUPTI_SUCCESS";
    return SUCCESS;
}

PH_API(int, cuptiGetCallbackName, (int domain, uint32_t id, const char **name))
{
    if (!name) return INVALID_PARAMETER;
    *name = domain == RUNTIME_DOMAIN || domain == DRIVER_DOMAIN
                ? ph_profile_call_name(domain == DRIVER_DOMAIN, id)
                : NULL;
    return *name ? SUCCESS : INVALID_PARAMETER;
}

/* ---- which activity ---- */
PH_API(int, cuptiActivityRegisterCallbacks, (give_buffer * requested, take_buffer *completed))
{
    if (!requested || !completed) return INVALID_PARAMETER;
    give = requested;
    take = completed;
    return SUCCESS;
}

PH_API(int, cuptiActivityRegisterTimestampCallback, (uint64_t (*timestamp)(void)))
{
    converts = timestamp != NULL;
    return SUCCESS;
}

static struct ph_clock_point *end_profile(size_t *count);

PH_API(int, cuptiActivityEnable, (uint32_t kind))
{
    if (kind >= PH_ACTIVITY_KINDS) return INVALID_KIND;
    if (!give || !serves()) return refuse();
    pthread_mutex_lock(&lock);
    bool any = false;
    for (int i = 0; i < PH_ACTIVITY_KINDS; i++) any = any || enabled[i];
    if (!any && !ph_profile_record()) {
        pthread_mutex_unlock(&lock);
        return refuse();
    }
    if (!any) ended = false;
    enabled[kind] = wanted[kind] = true;
    ph_profiler_on_end(end_profile);
    ph_profiler_clock_on(true);
    pthread_mutex_unlock(&lock);
    ph_warn_for_run("torch.profiler shows simulated time: GPU work and CUDA calls as --trace has "
                    "them; an operator's share of the time between two calls is that which it "
                    "took on this machine");
    return SUCCESS;
}

PH_API(int, cuptiActivityDisable, (uint32_t kind))
{
    if (kind >= PH_ACTIVITY_KINDS) return INVALID_KIND;
    pthread_mutex_lock(&lock);
    enabled[kind] = false;
    bool any = false;
    for (int i = 0; i < PH_ACTIVITY_KINDS; i++) any = any || enabled[i];
    if (!any) ph_profile_pause();
    /* A profiler may switch off and on again. Its clock goes back only when it has ended. */
    if (!any && ended) ph_profiler_clock_on(false);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

PH_API(int, cuptiActivityPushExternalCorrelationId, (int kind, uint64_t id))
{
    if (kind == CUSTOM0 || kind == CUSTOM1) ph_profile_push(kind - CUSTOM0, id);
    return SUCCESS;
}

PH_API(int, cuptiActivityPopExternalCorrelationId, (int kind, uint64_t *last))
{
    uint64_t id = kind == CUSTOM0 || kind == CUSTOM1 ? ph_profile_pop(kind - CUSTOM0) : 0;
    if (last) *last = id;
    return SUCCESS;
}

/* ---- records ---- */
static size_t size_of(uint32_t kind)
{
    switch (kind) {
    case PH_ACTIVITY_MEMCPY: return sizeof(struct ph_copy_record);
    case PH_ACTIVITY_MEMSET: return sizeof(struct ph_fill_record);
    case PH_ACTIVITY_CONCURRENT_KERNEL: return sizeof(struct ph_kernel_record);
    case PH_ACTIVITY_RUNTIME:
    case PH_ACTIVITY_DRIVER: return sizeof(struct ph_call_record);
    case PH_ACTIVITY_EXTERNAL_CORRELATION: return sizeof(struct ph_external_record);
    default: return 0;
    }
}

static bool next_buffer(void)
{
    uint8_t *bytes = NULL;
    size_t size = 0, most = 0;
    if (buffers == BUFFERS) return false;
    give(&bytes, &size, &most);
    if (!bytes) return false;
    buffer[buffers].bytes = bytes;
    buffer[buffers].size = size;
    buffer[buffers++].used = 0;
    return true;
}

static void put(const void *record)
{
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    size_t size = size_of(kind);
    if (!wanted[kind]) return;
    bool fits = buffers && buffer[buffers - 1].used + size <= buffer[buffers - 1].size;
    if (!fits && (!next_buffer() || buffer[buffers - 1].size < size)) {
        dropped++;
        return;
    }
    memcpy(buffer[buffers - 1].bytes + buffer[buffers - 1].used, record, size);
    buffer[buffers - 1].used += size;
}

static uint64_t stamp(int64_t ns)
{
    return converts ? ph_profiler_stamp((uint64_t)ns) : ph_profiler_epoch((uint64_t)ns);
}

static uint32_t correlation_of(int64_t number)
{
    return number ? FIRST_CORRELATION + (uint32_t)number : 0;
}

static void put_call(const struct ph_profiled_call *call)
{
    for (uint32_t i = 0; i < 2; i++)
        if (call->external[i])
            put(&(struct ph_external_record){.kind = PH_ACTIVITY_EXTERNAL_CORRELATION,
                                             .external_kind = CUSTOM0 + i,
                                             .external = call->external[i],
                                             .correlation = correlation_of(call->correlation)});
    if (!call->timed || !call->id) return;
    put(&(struct ph_call_record){.kind = call->driver ? PH_ACTIVITY_DRIVER : PH_ACTIVITY_RUNTIME,
                                 .id = call->id,
                                 .start = stamp((int64_t)call->begin_ns),
                                 .end = stamp((int64_t)call->end_ns),
                                 .process = (uint32_t)getpid(),
                                 .thread = call->thread,
                                 .correlation = correlation_of(call->correlation)});
}

static uint8_t copy_kind(int64_t from, int64_t to)
{
    if (from == PH_PEER || to == PH_PEER) return PTOP;
    if (from == PH_DEVICE) return to == PH_DEVICE ? DTOD : DTOH;
    return to == PH_DEVICE ? HTOD : HTOH;
}

/* CUpti_ActivityMemoryKind of a place */
static uint8_t place(int64_t memory)
{
    static const uint8_t places[] = {
        [PH_PAGEABLE] = 1, [PH_PINNED] = 2, [PH_DEVICE] = 3, [PH_PEER] = 3};
    return memory >= 0 && memory < (int64_t)sizeof places ? places[memory] : 0;
}

/* 1 where it is not known */
static int32_t extent(int64_t known) { return known ? (int32_t)known : 1; }

static void put_work(const struct ph_profiled_work *work)
{
    const int64_t *facts = work->facts;
    uint32_t device = (uint32_t)work->device, stream = (uint32_t)work->stream,
             correlation = correlation_of(work->correlation);
    uint64_t start = stamp(work->begin_ns), end = stamp(work->end_ns);
    if (work->kind == PH_ACTIVITY_MEMCPY)
        put(&(struct ph_copy_record){.kind = PH_ACTIVITY_MEMCPY,
                                     .copy = copy_kind(facts[2], facts[3]),
                                     .source = place(facts[2]),
                                     .destination = place(facts[3]),
                                     .flags = 1, /* asynchronous */
                                     .bytes = (uint64_t)facts[1],
                                     .start = start,
                                     .end = end,
                                     .device = device,
                                     .context = CONTEXT,
                                     .stream = stream,
                                     .correlation = correlation,
                                     .copies = 1});
    else if (work->kind == PH_ACTIVITY_MEMSET)
        put(&(struct ph_fill_record){.kind = PH_ACTIVITY_MEMSET,
                                     .bytes = (uint64_t)facts[1],
                                     .start = start,
                                     .end = end,
                                     .device = device,
                                     .context = CONTEXT,
                                     .stream = stream,
                                     .correlation = correlation,
                                     .flags = 1,
                                     .memory = place(facts[3])});
    else
        put(&(struct ph_kernel_record){
            .kind = PH_ACTIVITY_CONCURRENT_KERNEL,
            .registers = (uint16_t)facts[0],
            .start = start,
            .end = end,
            .completed = end,
            .device = device,
            .context = CONTEXT,
            .stream = stream,
            .grid = {(int32_t)facts[3], (int32_t)facts[4], (int32_t)facts[5]},
            /* Kineto computes an occupancy, which is an error for a kernel without threads */
            .block = {extent(facts[6]), extent(facts[7]), extent(facts[8])},
            .static_shared = (int32_t)facts[1],
            .dynamic_shared = (int32_t)facts[2],
            .correlation = correlation,
            .name = work->name});
}

/* The profiler makes the converter of its clock: nothing more will be in this profile. */
static struct ph_clock_point *end_profile(size_t *count)
{
    struct ph_profile profile;
    pthread_mutex_lock(&lock);
    struct ph_clock_point *point = ph_profile_collect(&profile, count);
    if (point) {
        for (size_t i = 0; i < profile.calls; i++) put_call(&profile.call[i]);
        for (size_t i = 0; i < profile.works; i++) put_work(&profile.work[i]);
        ended = true;
        if (dropped)
            ph_warn("torch.profiler took only part of its GPU activity: %zu records did not fit "
                    "into its buffers",
                    dropped);
    }
    pthread_mutex_unlock(&lock);
    return point;
}

PH_API(int, cuptiActivityFlushAll, (uint32_t forced))
{
    (void)forced;
    pthread_mutex_lock(&lock);
    size_t count = buffers;
    buffers = 0;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < count; i++)
        take(NULL, 0, buffer[i].bytes, buffer[i].size, buffer[i].used);
    if (count) memset(wanted, 0, sizeof wanted);
    return SUCCESS;
}

/* `record`: NULL for the first record of the buffer, else the one before. */
PH_API(int, cuptiActivityGetNextRecord, (uint8_t *bytes, size_t valid, uint8_t **record))
{
    if (!bytes || !record) return INVALID_PARAMETER;
    uint8_t *next = bytes;
    if (*record) {
        uint32_t kind;
        memcpy(&kind, *record, sizeof kind);
        next = *record + size_of(kind);
    }
    if (next >= bytes + valid) return MAX_LIMIT_REACHED;
    *record = next;
    return SUCCESS;
}

PH_API(int, cuptiActivityGetNumDroppedRecords, (void *context, uint32_t stream, size_t *count))
{
    (void)context, (void)stream;
    if (!count) return INVALID_PARAMETER;
    *count = dropped;
    dropped = 0;
    return SUCCESS;
}

#undef PH_CLASS
#define PH_CLASS PH_HINT
PH_API(int, cuptiActivitySetAttribute, (int attribute, size_t *size, void *value))
{
    (void)attribute;
    return size && value ? SUCCESS : INVALID_PARAMETER;
}
/* Kineto leaves out of its records a few calls that are not logged either. */
PH_API(int, cuptiActivityEnableRuntimeApi, (uint32_t id, uint8_t on))
{
    (void)id, (void)on;
    return SUCCESS;
}
PH_API(int, cuptiActivityEnableDriverApi, (uint32_t id, uint8_t on))
{
    (void)id, (void)on;
    return SUCCESS;
}
PH_API(int, cuptiActivityEnableCudaEventDeviceTimestamps, (uint8_t on))
{
    (void)on;
    return SUCCESS;
}
PH_API(int, cuptiFinalize, (void)) { return SUCCESS; }

/* Kineto of torch up to 2.14 wants to hear of new contexts, for counters that are not simulated. */
PH_API(int, cuptiEnableCallback, (uint32_t on, void *subscriber, int domain, uint32_t id))
{
    (void)on, (void)subscriber, (void)id;
    return domain == RESOURCE_DOMAIN ? SUCCESS : NOT_SUPPORTED;
}

#undef PH_CLASS
#define PH_CLASS PH_REFUSED
/* Kineto asks for these callbacks only where TEARDOWN_CUPTI is set, and does without. */
PH_API(int, cuptiEnableDomain, (uint32_t on, void *subscriber, int domain))
{
    (void)on, (void)subscriber, (void)domain;
    return NOT_SUPPORTED;
}
