/* fake_cupti.c - a CUPTI for an emulated GPU: records of the work that the emulator was given.
 *
 * Why it exists: a leader is tested over an emulated GPU. This library implements the functions
 * that leader/measure/cupti.c calls, with the records of CUDA 13. The work of a pushed external id
 * is read from the emulator's own rank statistics before and after (launches and busy time of this
 * process in RUN_DIR/ranks). A test can set it instead with fake_cupti_next. The library writes one
 * line per external id to FAKE_CUPTI_LOG: the id, the number of activities, and their nanoseconds.
 * So a test need not trust the leader's own counts. FAKE_CUPTI_IDS says which API records external
 * ids need: "driver" or "all". With "late", only the ids of the job's own calls need the driver's
 * records. FAKE_CUPTI_VERSION is the interface's version. */
#define _GNU_SOURCE
#include "../../libintercept/base/protocol.gen.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_PARAMETER = 1, MAX_LIMIT_REACHED = 12, QUEUE_EMPTY = 18 };
enum {
    KERNEL_KIND = 10,
    EXTERNAL_KIND = 39,
    KERNEL_BYTES = 216,
    EXTERNAL_BYTES = 24,
    CUSTOM0 = 3,
    KINDS = 64,
    MOST = 1 << 20,
    GAP_NS = 100,
    DEPTH = 16,
    NEXT = 64,
    FILLER_STREAM = 77
};

struct work {
    uint64_t start, end, id;
    uint32_t correlation, stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct work *pending;
static size_t pendings;
static uint64_t clock_end;
static uint32_t correlations;
static bool enabled[KINDS], api_enabled;
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static struct {
    uint64_t from[NEXT], to[NEXT];
    uint32_t stream[NEXT];
    int count;
    bool set;
} next;
static FILE *log_file;
static _Thread_local struct {
    uint64_t id, launches, busy;
} stack[DEPTH];
static _Thread_local int depth;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* The emulator's rank statistics of this process. NULL: the process has not joined its run yet. */
static const struct ph_rank_stats *emulator_page(void)
{
    static const struct ph_rank_stats *page;
    const char *run_dir = getenv("PHANTORA_RUN_DIR");
    char folder[512], middle[32], path[1024];
    if (page || !run_dir) return page;
    snprintf(folder, sizeof folder, "%s/ranks", run_dir);
    snprintf(middle, sizeof middle, "-%d-", (int)getpid());
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && !page && (entry = readdir(entries));) {
        if (!strstr(entry->d_name, middle)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd); /* this process holds no lock on the file */
        if (map != MAP_FAILED) page = map;
    }
    if (entries) closedir(entries);
    return page;
}

static void totals(uint64_t *launches, uint64_t *busy)
{
    const struct ph_rank_stats *page = emulator_page();
    *launches = *busy = 0;
    for (int i = 0; page && i < PH_SOURCES; i++)
        *launches += page->launches[i], *busy += page->busy_ns[i];
}

static void add_locked(uint64_t id, uint64_t start, uint64_t end, uint32_t stream)
{
    if (!pending) pending = calloc(MOST, sizeof *pending);
    if (!pending || pendings == MOST) abort();
    pending[pendings++] = (struct work){start, end, id, ++correlations, stream};
    if (end > clock_end) clock_end = end;
}

/* ---- what a test may set ---- */
/* Sets the pieces of work of the next pushed id: their start and end in nanoseconds from the pop of
 * the id, and CUPTI's stream numbers. */
EXPORT void fake_cupti_next(int count, const uint64_t *from, const uint64_t *to,
                            const uint32_t *stream)
{
    pthread_mutex_lock(&lock);
    next.count = count;
    next.set = true;
    for (int i = 0; i < count && i < NEXT; i++)
        next.from[i] = from[i], next.to[i] = to[i], next.stream[i] = stream[i];
    pthread_mutex_unlock(&lock);
}

/* Adds pieces of work without an external id, one every `apart` nanoseconds from now on. They run
 * on the stream whose number was asked for. */
EXPORT void fake_cupti_filler(int count, uint64_t each, uint64_t apart)
{
    pthread_mutex_lock(&lock);
    uint64_t end = clock_end, at = now() > end ? now() : end;
    for (int i = 0; i < count; i++, at += apart) add_locked(0, at, at + each, FILLER_STREAM);
    clock_end = end; /* what a test adds next overlaps this work */
    pthread_mutex_unlock(&lock);
}

/* ---- the interface ---- */
EXPORT int cuptiGetVersion(uint32_t *version)
{
    const char *given = getenv("FAKE_CUPTI_VERSION");
    return *version = given ? (uint32_t)atoi(given) : 130001, OK;
}
EXPORT int cuptiGetResultString(int result, const char **text)
{
    return *text = result ? "fake failure" : "success", OK;
}
EXPORT int cuptiGetTimestamp(uint64_t *timestamp) { return *timestamp = now(), OK; }
EXPORT int cuptiGetStreamIdEx(void *context, void *stream, uint8_t each, uint32_t *number)
{
    return (void)context, (void)stream, (void)each, *number = FILLER_STREAM, OK;
}
EXPORT int cuptiActivityEnable(int kind)
{
    return kind < KINDS ? enabled[kind] = true, OK : INVALID_PARAMETER;
}
EXPORT int cuptiActivityDisable(int kind)
{
    return kind < KINDS ? enabled[kind] = false, OK : INVALID_PARAMETER;
}
EXPORT int cuptiActivityEnableDriverApi(uint32_t id, uint8_t on)
{
    return (void)id, api_enabled = on, OK;
}
EXPORT int cuptiActivityEnableRuntimeApi(uint32_t id, uint8_t on)
{
    return (void)id, api_enabled = on, OK;
}
EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped)
{
    return (void)context, (void)stream, *dropped = 0, OK;
}

EXPORT int cuptiActivityRegisterCallbacks(void (*requested)(uint8_t **, size_t *, size_t *),
                                          void (*completed)(void *, uint32_t, uint8_t *, size_t,
                                                            size_t))
{
    request = requested, complete = completed;
    return OK;
}

EXPORT int cuptiActivityPushExternalCorrelationId(int kind, uint64_t id)
{
    if (kind != CUSTOM0 || depth == DEPTH) return INVALID_PARAMETER;
    stack[depth].id = id;
    totals(&stack[depth].launches, &stack[depth].busy);
    depth++;
    return OK;
}

EXPORT int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last)
{
    uint64_t launches, busy;
    if (kind != CUSTOM0) return INVALID_PARAMETER;
    if (depth == 0) return QUEUE_EMPTY;
    depth--;
    *last = stack[depth].id;
    pthread_mutex_lock(&lock);
    totals(&launches, &busy);
    launches -= stack[depth].launches;
    busy -= stack[depth].busy;
    uint64_t at = now() > clock_end + GAP_NS ? now() : clock_end + GAP_NS, sum = 0;
    size_t before = pendings;
    if (enabled[KERNEL_KIND] && next.set && *last >= DEPTH) {
        for (int i = 0; i < next.count; i++)
            add_locked(*last, at + next.from[i], at + next.to[i], next.stream[i]);
        next.set = false;
    } else {
        for (uint64_t i = 0; enabled[KERNEL_KIND] && i < launches; i++) {
            uint64_t share = busy / launches + (i == 0 ? busy % launches : 0);
            add_locked(*last, at, at + share, 7);
            at += share + GAP_NS;
        }
    }
    for (size_t i = before; i < pendings; i++) sum += pending[i].end - pending[i].start;
    if (!log_file && getenv("FAKE_CUPTI_LOG")) log_file = fopen(getenv("FAKE_CUPTI_LOG"), "a");
    if (log_file)
        fprintf(log_file, "%llu %zu %llu\n", (unsigned long long)*last, pendings - before,
                (unsigned long long)sum),
            fflush(log_file);
    pthread_mutex_unlock(&lock);
    return OK;
}

static void put(unsigned char *record, size_t at, const void *value, size_t bytes)
{
    memcpy(record + at, value, bytes);
}

static size_t write_external(unsigned char *record, const struct work *work)
{
    memset(record, 0, EXTERNAL_BYTES);
    put(record, 0, &(uint32_t){EXTERNAL_KIND}, 4), put(record, 4, &(uint32_t){CUSTOM0}, 4);
    put(record, 8, &work->id, 8), put(record, 16, &work->correlation, 4);
    return EXTERNAL_BYTES;
}

static size_t write_kernel(unsigned char *record, const struct work *work)
{
    memset(record, 0, KERNEL_BYTES);
    put(record, 0, &(uint32_t){KERNEL_KIND}, 4), put(record, 16, &work->start, 8),
        put(record, 24, &work->end, 8);
    put(record, 48, &work->stream, 4), put(record, 92, &work->correlation, 4);
    return KERNEL_BYTES;
}

static bool has_id(const struct work *work)
{
    enum { DRIVER = 4, RUNTIME = 5 };
    const char *needs = getenv("FAKE_CUPTI_IDS");
    if (!enabled[EXTERNAL_KIND] || !work->id) return false;
    if (needs && strcmp(needs, "all") == 0) return enabled[DRIVER] && enabled[RUNTIME];
    if (needs && (strcmp(needs, "driver") == 0 || work->id >= DEPTH)) return enabled[DRIVER];
    return api_enabled || enabled[DRIVER];
}

EXPORT int cuptiActivityFlushAll(uint32_t forced)
{
    (void)forced;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < pendings;) {
        uint8_t *buffer;
        size_t bytes, records, used = 0;
        request(&buffer, &bytes, &records);
        if (!buffer) break;
        /* A kernel's record comes before the record that names its external id. CUPTI may order
         * them like this too, because its buffers are per thread. */
        for (; i < pendings && used + KERNEL_BYTES + EXTERNAL_BYTES <= bytes; i++) {
            used += write_kernel(buffer + used, &pending[i]);
            if (has_id(&pending[i])) used += write_external(buffer + used, &pending[i]);
        }
        complete(NULL, 0, buffer, bytes, used);
    }
    pendings = 0;
    pthread_mutex_unlock(&lock);
    return OK;
}

EXPORT int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, unsigned char **record)
{
    uint32_t kind;
    if (!*record) return *record = buffer, valid ? OK : MAX_LIMIT_REACHED;
    memcpy(&kind, *record, 4);
    unsigned char *following = *record + (kind == EXTERNAL_KIND ? EXTERNAL_BYTES : KERNEL_BYTES);
    if (following >= buffer + valid) return MAX_LIMIT_REACHED;
    *record = following;
    return OK;
}
