/* trace/trace_log.c - this process's part of the trace, logged before its times are known.
 *
 * Why it exists: `--trace` writes one Kineto trace per rank (docs/traces.md). The time of GPU work
 * is known only once the vertices that it depends on are final, and the hub does not see kernels.
 * So each process logs its work to RUN_DIR/trace/NAME.log, together with the time expressions that
 * give its end. NAME is the file name of the rank statistics. The hub logs the final times of the
 * vertices. trace/log.py reads both logs.
 *
 * Form: docs/wire-protocol.md, "Trace log". The header of a record is stored last, so every record
 * found in the file is complete, however the process ended. Texts and signatures are logged once;
 * later records refer to them by number. */
#define _GNU_SOURCE /* pthread_getname_np */
#include "trace/trace_log.h"
#include "base/api.h"
#include "base/environment.h"
#include "base/fnv1a.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/threads.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KNOWN = 1 << 16, NESTED = 256 };

bool ph_tracing;
_Thread_local int ph_trace_depth;
_Thread_local uint64_t ph_call_cost_ns;

static const struct ph_trace_clock *host_clock; /* NULL before the process joins the run */
static bool chosen;                             /* this process is traced, in some or all steps */
static uint64_t from_step, to_step = UINT64_MAX, step_now;
static bool backward_seen, ever_backward;
/* of a profile inside of the job; NULL: none */
static const struct ph_profile_observer *_Atomic observer;
static char page[64]; /* the file name of the rank statistics */
/* guards everything below; it may be taken while ph_lock is held, never the other way round */
static pthread_mutex_t PH_FREE_IN_CHILD log_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static unsigned char *chunk;
static uint64_t chunk_offset, used;
static struct {
    uint64_t hash;
    uint32_t id;
} known[KNOWN];
static uint32_t texts;
static uint16_t threads;
static _Atomic uint32_t correlations;
static _Atomic uint64_t externals;

static _Thread_local struct {
    uint16_t index; /* 0: this thread is not logged yet */
    bool launched;  /* the next ph_run runs the work of `signature` */
    uint32_t signature, correlation, registers, static_shared, description, queued;
    const char *hint, *call;
    struct ph_moment begin;
    uint64_t begin_tick;
    int depth;
    struct {
        struct ph_log_operator op;
        uint32_t description;
        bool logged;
    } nested[NESTED];
} me;

/* ---- the file ---- */
static void give_up_locked(const char *why)
{
    chosen = ph_tracing = false;
    ph_warn("the trace of this rank ends here: %s; in the run directory", why);
}

static bool next_chunk_locked(void)
{
    uint64_t at = chunk ? chunk_offset + PH_LOG_CHUNK_BYTES : 0;
    /* Allocates real blocks: on a sparse file, a full disk would kill the job with SIGBUS. */
    int failed = posix_fallocate(log_fd, (off_t)at, PH_LOG_CHUNK_BYTES);
    void *fresh = failed ? MAP_FAILED
                         : mmap(NULL, PH_LOG_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                                log_fd, (off_t)at);
    if (fresh == MAP_FAILED) {
        give_up_locked(strerror(failed ? failed : errno));
        return false;
    }
    if (chunk) munmap(chunk, PH_LOG_CHUNK_BYTES);
    chunk = fresh;
    chunk_offset = at;
    used = 0;
    return true;
}

/* The record comes in two parts, so that callers need not copy them together first. */
static void append_locked(uint16_t type, const void *first, size_t first_bytes, const void *second,
                          size_t second_bytes)
{
    size_t bytes = (sizeof(struct ph_log_header) + first_bytes + second_bytes + 7) & ~(size_t)7;
    if (!chosen || bytes > PH_LOG_CHUNK_BYTES ||
        ((!chunk || used + bytes > PH_LOG_CHUNK_BYTES) && !next_chunk_locked()))
        return;
    unsigned char *at = chunk + used;
    struct ph_log_header head = {type, me.index, (uint32_t)bytes};
    uint64_t word;
    memcpy(at + sizeof head, first, first_bytes);
    if (second_bytes) memcpy(at + sizeof head + first_bytes, second, second_bytes);
    memcpy(&word, &head, sizeof word);
    __atomic_store_n((uint64_t *)(void *)at, word, __ATOMIC_RELEASE);
    used += bytes;
}

static void know_thread_locked(void)
{
    struct ph_log_thread thread = {.tid = (int32_t)ph_thread_id()};
    if (me.index) return;
    me.index = ++threads;
    pthread_getname_np(pthread_self(), thread.name, sizeof thread.name);
    append_locked(PH_LOG_THREAD, &thread, sizeof thread, NULL, 0);
}

/* The number of a byte string, and whether it is new. Strings are identified by a 64-bit hash, as
 * signatures are elsewhere. When the table is full, a new string is logged each time. */
static uint32_t number_locked(const void *bytes, size_t length, uint64_t seed, bool *fresh)
{
    uint64_t hash = ph_fnv1a(seed, bytes, length);
    hash = hash ? hash : 1;
    uint64_t slot = hash % KNOWN;
    for (int tried = 0; tried < 64; tried++, slot = (slot + 1) % KNOWN) {
        if (known[slot].hash == hash) return *fresh = false, known[slot].id;
        if (known[slot].hash) continue;
        known[slot].hash = hash;
        known[slot].id = ++texts;
        return *fresh = true, texts;
    }
    return *fresh = true, ++texts;
}

static uint32_t text_locked(const char *text)
{
    bool fresh;
    struct ph_log_text entry = {.length = (uint32_t)strlen(text)};
    entry.number = number_locked(text, entry.length, PH_FNV1A, &fresh);
    if (fresh) append_locked(PH_LOG_TEXT, &entry, sizeof entry, text, entry.length);
    return entry.number;
}

/* ---- start and end ---- */
static bool named(const char *list, long rank) /* "0,8-15"; the launcher has checked the syntax */
{
    while (list && *list) {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (first <= rank && rank <= last) return true;
        list = *end == ',' ? end + 1 : NULL;
    }
    return false;
}

static long number_of(const char *name)
{
    const char *text = ph_env(name);
    return text ? strtol(text, NULL, 10) : -1;
}

static bool asked_for(void)
{
    const char *ranks = ph_env("PHANTORA_TRACE_RANKS");
    return ph_env("PHANTORA_TRACE") && (!ranks || named(ranks, number_of("RANK")));
}

static void forget(void);

static void open_locked(const char *folder)
{
    struct ph_log_start start = {.version = PH_LOG_VERSION,
                                 .rank = (int32_t)number_of("RANK"),
                                 .world_size = (int32_t)number_of("WORLD_SIZE"),
                                 .node = (int32_t)number_of("PHANTORA_NODE"),
                                 .pid = (int32_t)getpid()};
    char path[512];
    ph_forget_in_child(forget);
    snprintf(path, sizeof path, "%s/%s/%s.log", ph_env("PHANTORA_RUN_DIR"), folder, page);
    log_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    chosen = true;
    if (log_fd < 0) give_up_locked(strerror(errno));
    append_locked(PH_LOG_START, &start, sizeof start, NULL, 0);
}

static void decide_locked(void)
{
    bool asked = asked_for() && from_step <= step_now && step_now <= to_step;
    ph_tracing = chosen && (observer || asked);
}

void ph_trace_start(const char *page_name, const struct ph_trace_clock *clock)
{
    const char *steps = ph_env("PHANTORA_TRACE_STEPS");
    char *end;
    host_clock = clock;
    snprintf(page, sizeof page, "%s", page_name);
    if (!asked_for()) return;
    pthread_mutex_lock(&log_lock);
    if (steps) { /* "3:5", "3:" */
        from_step = strtoull(steps, &end, 10);
        if (*end == ':' && end[1]) to_step = strtoull(end + 1, NULL, 10);
    }
    open_locked("trace");
    decide_locked();
    pthread_mutex_unlock(&log_lock);
}

/* A process that is not traced has a log of its own kind, which the launcher makes no trace of. */
bool ph_trace_profile(const struct ph_profile_observer *profile, uint64_t *since)
{
    char folder[512];
    pthread_mutex_lock(&log_lock);
    if (profile && log_fd < 0) {
        snprintf(folder, sizeof folder, "%s/profile", ph_env("PHANTORA_RUN_DIR"));
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            give_up_locked(strerror(errno));
        else
            open_locked("profile");
    }
    observer = profile;
    *since = chunk ? chunk_offset + used : 0;
    if (!chosen) observer = NULL;
    decide_locked();
    bool works = chosen;
    pthread_mutex_unlock(&log_lock);
    return works;
}

static void forget(void)
{
    pthread_mutex_init(&log_lock, NULL);
    chosen = ph_tracing = false;
    if (chunk) munmap(chunk, PH_LOG_CHUNK_BYTES);
    if (log_fd >= 0) close(log_fd);
    chunk = NULL;
    log_fd = -1;
    memset(known, 0, sizeof known);
    memset(&me, 0, sizeof me);
    ph_trace_depth = 0;
    texts = threads = 0;
    observer = NULL;
    step_now = from_step = 0;
    to_step = UINT64_MAX;
    backward_seen = ever_backward = false;
}

/* ---- host calls ---- */
static uint64_t enclosing(void)
{
    return me.depth && me.depth <= NESTED ? me.nested[me.depth - 1].op.external : 0;
}

static uint64_t tick(void)
{
    const struct ph_profile_observer *one = observer;
    return one ? one->tick() : 0;
}

/* No earlier than the operator around it began. What observing an operator takes is an estimate,
 * part of which is taken off the host's time after the operator's begin was read. */
static struct ph_moment in_operator(struct ph_moment at)
{
    if (me.depth == 0 || me.depth > NESTED || !me.nested[me.depth - 1].logged) return at;
    const struct ph_moment *begin = &me.nested[me.depth - 1].op.begin;
    if (begin->vertex == at.vertex && at.offset < begin->offset) at.offset = begin->offset;
    return at;
}

static void log_call(const char *name, struct ph_moment begin, struct ph_moment end,
                     uint64_t begin_tick)
{
    uint64_t end_tick = tick();
    struct ph_log_call call = {.correlation = me.correlation,
                               .external = enclosing(),
                               .begin = in_operator(begin),
                               .end = in_operator(end)};
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    call.name = text_locked(name);
    append_locked(PH_LOG_CALL, &call, sizeof call, NULL, 0);
    if (observer) observer->called(name, call.correlation, begin_tick, end_tick);
    pthread_mutex_unlock(&log_lock);
}

void ph_trace_api(const char *name) { me.hint = name; }

static const char *name_of_call(const char *usual)
{
    const char *name = me.hint ? me.hint : usual;
    me.hint = NULL;
    me.correlation = atomic_fetch_add_explicit(&correlations, 1, memory_order_relaxed) + 1;
    return name;
}

void ph_trace_call(const char *name)
{
    if (ph_trace_depth) return;
    name = name_of_call(name);
    struct ph_moment end = host_clock->now(),
                     begin = {end.vertex, end.offset - (int64_t)ph_call_cost_ns};
    log_call(name, begin, end, tick());
}

void ph_trace_call_begin(const char *name)
{
    if (ph_trace_depth++) return;
    me.call = name_of_call(name);
    me.begin_tick = tick();
    me.begin = host_clock->now();
    me.begin.offset -= (int64_t)ph_call_cost_ns;
}

void ph_trace_call_end(void)
{
    if (--ph_trace_depth == 0) log_call(me.call, me.begin, host_clock->now(), me.begin_tick);
    me.launched = false;
}

/* ---- GPU work ---- */
void ph_trace_code(uint32_t registers, uint32_t static_shared)
{
    me.registers = registers;
    me.static_shared = static_shared;
}

void ph_trace_replayed(const struct ph_pack *signature, uint32_t registers, uint32_t static_shared)
{
    bool fresh;
    struct ph_log_signature entry = {.length = (uint32_t)signature->length,
                                     .registers = registers,
                                     .static_shared = static_shared};
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    entry.number = number_locked(signature->data, signature->length, 0x9e3779b97f4a7c15ull, &fresh);
    if (fresh)
        append_locked(PH_LOG_SIGNATURE, &entry, sizeof entry, signature->data, signature->length);
    pthread_mutex_unlock(&log_lock);
    me.signature = entry.number;
    me.launched = true;
}

void ph_trace_launch(const char *call, const struct ph_pack *signature)
{
    ph_trace_call_begin(call);
    ph_trace_replayed(signature, me.registers, me.static_shared);
    me.registers = me.static_shared = 0;
}

void ph_trace_work_locked(const struct ph_trace_work *what, const void *head, size_t head_bytes)
{
    struct ph_log_work work = {.stream = what->stream,
                               .device = (uint16_t)what->device,
                               .source = (uint16_t)what->source,
                               .external = enclosing(),
                               .duration = what->duration_ns,
                               .contention = what->contention_ns};
    if (me.launched) work.signature = me.signature, work.correlation = me.correlation;
    me.launched = false;
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    append_locked(PH_LOG_WORK, &work, sizeof work, head, head_bytes);
    pthread_mutex_unlock(&log_lock);
}

void ph_trace_queued(void)
{
    if (me.description) me.queued = me.description;
}

void ph_trace_communicated(struct ph_log_comm comm)
{
    comm.description = me.description ? me.description : me.queued;
    comm.correlation = me.correlation;
    comm.external = enclosing();
    me.queued = 0;
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    append_locked(PH_LOG_COMM, &comm, sizeof comm, NULL, 0);
    pthread_mutex_unlock(&log_lock);
}

/* ---- framework operators and steps (values/trace.cpp) ---- */
/* called before the process uses CUDA */
PH_API(int, phantora_trace_wanted, (void)) { return asked_for(); }

/* What PyTorch's allocator holds (values/trace.cpp): the device, and bytes allocated, reserved and
 * at the peak. False when nothing is to be logged. */
static bool (*memory_source)(uint32_t *device, uint64_t bytes[3]);

PH_API(void, phantora_trace_memory, (bool (*source)(uint32_t *, uint64_t *)))
{
    memory_source = source;
}

/* Logs the allocator's figures when they have changed. `name`: the operator to which the change is
 * put down. The source is asked without the lock, because it calls into PyTorch. */
static void look_at_memory(uint32_t name, struct ph_moment now)
{
    struct ph_log_memory memory = {.name = name, .at = now};
    uint64_t bytes[3];
    if (!ph_tracing || !memory_source || !memory_source(&memory.device, bytes)) return;
    memory.allocated = bytes[0], memory.reserved = bytes[1], memory.peak = bytes[2];
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    append_locked(PH_LOG_MEMORY, &memory, sizeof memory, NULL, 0);
    pthread_mutex_unlock(&log_lock);
}

/* A training step ends with an optimizer's step. Several optimizers may follow one backward pass;
 * then the last of them ends the step. */
static void optimizer_ended_locked(struct ph_moment now)
{
    if (backward_seen || !ever_backward || step_now == 0) step_now++;
    backward_seen = false;
    struct ph_log_step step = {step_now, now};
    /* This thread may not have logged anything yet: --trace-steps may begin with this step. */
    know_thread_locked();
    append_locked(PH_LOG_STEP, &step, sizeof step, NULL, 0);
    decide_locked();
}

static void backward_locked(void)
{
    backward_seen = ever_backward = true;
    /* the end of the last step is final now */
    if (step_now >= to_step) ph_tracing = chosen && observer;
}

/* `description`: a collective's description as JSON members; NULL for other operators. */
PH_API(void, phantora_trace_operator_begin, (int kind, const char *name, const char *description))
{
    int depth = me.depth++;
    if (depth >= NESTED) return;
    struct ph_moment now;
    uint64_t cpu = host_clock ? host_clock->peek(&now) : 0;
    me.nested[depth].description = me.description;
    me.nested[depth].logged = chosen && cpu != 0;
    if (!me.nested[depth].logged) return;
    uint64_t external = atomic_fetch_add_explicit(&externals, 1, memory_order_relaxed) + 1;
    look_at_memory(depth ? me.nested[depth - 1].op.name : 0, now);
    me.nested[depth].op =
        (struct ph_log_operator){.kind = (uint32_t)kind, .external = external, .begin = now};
    pthread_mutex_lock(&log_lock);
    if (kind == PH_OPERATOR_BACKWARD) backward_locked();
    if (ph_tracing) {
        know_thread_locked();
        me.nested[depth].op.name = text_locked(name);
        if (description) me.description = text_locked(description);
    }
    pthread_mutex_unlock(&log_lock);
    host_clock->excuse(cpu);
}

PH_API(void, phantora_trace_operator_end, (int ends_step))
{
    struct ph_moment now;
    if (me.depth == 0) return; /* the operator began on another thread */
    int depth = --me.depth;
    if (depth >= NESTED) return;
    me.description = me.nested[depth].description;
    uint64_t cpu = me.nested[depth].logged ? host_clock->peek(&now) : 0;
    if (cpu == 0) return;
    struct ph_log_operator *op = &me.nested[depth].op;
    op->end = now;
    look_at_memory(op->name, now);
    pthread_mutex_lock(&log_lock);
    if (ph_tracing && op->name) append_locked(PH_LOG_OPERATOR, op, sizeof *op, NULL, 0);
    if (ends_step) optimizer_ended_locked(now);
    pthread_mutex_unlock(&log_lock);
    host_clock->excuse(cpu);
}

/* ---- ranges ---- */
bool ph_trace_range_begin(const char *name, struct ph_log_operator *range)
{
    struct ph_moment now;
    uint64_t cpu = chosen && ph_tracing && host_clock ? host_clock->peek(&now) : 0;
    if (cpu == 0) return false;
    *range = (struct ph_log_operator){
        .kind = PH_OPERATOR_USER,
        .external = atomic_fetch_add_explicit(&externals, 1, memory_order_relaxed) + 1,
        .begin = now};
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    range->name = text_locked(name);
    pthread_mutex_unlock(&log_lock);
    host_clock->excuse(cpu);
    return true;
}

void ph_trace_range_end(struct ph_log_operator *range)
{
    uint64_t cpu = chosen && host_clock ? host_clock->peek(&range->end) : 0;
    if (cpu == 0) return;
    pthread_mutex_lock(&log_lock);
    know_thread_locked();
    append_locked(PH_LOG_OPERATOR, range, sizeof *range, NULL, 0);
    pthread_mutex_unlock(&log_lock);
    host_clock->excuse(cpu);
}
