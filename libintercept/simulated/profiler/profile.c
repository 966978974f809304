/* simulated/profiler/profile.c - a profile of this process while it runs.
 *
 * Why it exists: calls and GPU work are logged as for `--trace` (trace/trace_log.c), and the hub
 * says when they were (PROFILE). So a profile inside of the job has the times of a trace. Beside
 * the log this keeps what only the process knows: real time, threads, and the operators around each
 * call. */
#define _GNU_SOURCE
#include "simulated/profiler/profile.h"
#include "base/fork.h"
#include "base/log.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "time/timeline.h"
#include "trace/trace_log.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_FIELDS = 3, WORK_FIELDS = 16, DEEPEST = 64 };

/* Callback ids: facts of cupti_runtime_cbid.h and cupti_driver_cbid.h. They never change. */
static const struct known {
    const char *name;
    uint32_t id;
    bool driver;
} known_calls[] = {
    {"cudaMemcpyAsync", 41, false},        {"cudaMemsetAsync", 51, false},
    {"cudaStreamSynchronize", 131, false}, {"cudaStreamQuery", 132, false},
    {"cudaEventRecord", 135, false},       {"cudaEventSynchronize", 137, false},
    {"cudaEventQuery", 138, false},        {"cudaStreamWaitEvent", 147, false},
    {"cudaDeviceSynchronize", 165, false}, {"cudaLaunchKernel", 211, false},
    {"cudaGraphLaunch", 311, false},       {"cudaLaunchKernelExC", 430, false},
    {"cuLaunchKernel", 307, true},         {"cuLaunchKernelEx", 652, true},
};

/* guards what follows; taken while the log is locked */
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;
static bool begun;
static uint64_t since;
static struct ph_clock_point first;
static struct ph_profiled_call *calls;
static size_t call_count, call_room;
static struct ph_profiled_work *works;
static size_t work_count;
static char **names;
static size_t name_count;

static _Thread_local struct {
    uint32_t depth[2];
    uint64_t external[2][DEEPEST];
} me;

/* ---- what is logged ---- */
static const struct known *find(const char *name)
{
    for (size_t i = 0; i < sizeof known_calls / sizeof *known_calls; i++)
        if (strcmp(known_calls[i].name, name) == 0) return &known_calls[i];
    return NULL;
}

const char *ph_profile_call_name(bool driver, uint32_t id)
{
    for (size_t i = 0; i < sizeof known_calls / sizeof *known_calls; i++)
        if (known_calls[i].id == id && known_calls[i].driver == driver) return known_calls[i].name;
    return NULL;
}

static uint64_t around(int which)
{
    uint32_t depth = me.depth[which] < DEEPEST ? me.depth[which] : DEEPEST;
    return depth ? me.external[which][depth - 1] : 0;
}

static void *room_for(void *array, size_t used, size_t *room, size_t size)
{
    if (used < *room) return array;
    *room = *room ? *room * 2 : 4096;
    void *more = realloc(array, *room * size);
    if (!more) ph_die("out of host memory for a profile of %zu calls", *room);
    return more;
}

static void called(const char *name, uint32_t correlation, uint64_t begin, uint64_t end)
{
    const struct known *known = find(name);
    struct ph_profiled_call call = {.correlation = correlation,
                                    .thread = (uint32_t)pthread_self(),
                                    .id = known ? known->id : 0,
                                    .driver = known && known->driver,
                                    .begin_tick = begin,
                                    .end_tick = end,
                                    .external = {around(0), around(1)}};
    pthread_mutex_lock(&lock);
    calls = room_for(calls, call_count, &call_room, sizeof *calls);
    calls[call_count++] = call;
    pthread_mutex_unlock(&lock);
}

void ph_profile_push(int which, uint64_t external)
{
    if (me.depth[which] < DEEPEST) me.external[which][me.depth[which]] = external;
    me.depth[which]++;
}

uint64_t ph_profile_pop(int which)
{
    uint64_t last = around(which);
    if (me.depth[which]) me.depth[which]--;
    return last;
}

static const struct ph_profile_observer observer = {ph_profiler_tick, called};

static void forget(void)
{
    begun = false;
    call_count = work_count = name_count = 0;
    memset(&me, 0, sizeof me);
}

/* ---- begin and end ---- */
bool ph_profile_record(void)
{
    uint64_t place;
    ph_touch();
    ph_forget_in_child(forget);
    if (!begun) ph_timeline_profiled(true);
    if (!ph_trace_profile(&observer, &place)) {
        ph_timeline_profiled(false);
        return false;
    }
    if (!begun) {
        pthread_mutex_lock(&lock);
        begun = true;
        since = place;
        call_count = 0;
        pthread_mutex_unlock(&lock);
        first = (struct ph_clock_point){ph_profiler_tick(), ph_profiler_now()};
    }
    return true;
}

void ph_profile_pause(void)
{
    uint64_t place;
    if (begun) ph_trace_profile(NULL, &place);
}

static void read_names(struct ph_reply *reply)
{
    for (size_t i = 0; i < name_count; i++) free(names[i]);
    name_count = ph_read_array(reply);
    names = realloc(names, (name_count + 1) * sizeof *names);
    if (!names) ph_die("out of host memory");
    for (size_t i = 0; i < name_count; i++) {
        size_t length;
        const unsigned char *text = ph_read_bytes(reply, &length);
        names[i] = strndup((const char *)text, length);
        if (!names[i]) ph_die("out of host memory");
    }
}

/* Calls come in the order in which they were logged, those without a time left out. */
static void read_calls(struct ph_reply *reply)
{
    size_t at = 0;
    for (uint32_t left = ph_read_array(reply); left >= CALL_FIELDS; left -= CALL_FIELDS) {
        uint32_t correlation = (uint32_t)ph_read_int(reply);
        uint64_t begin = (uint64_t)ph_read_int(reply), end = (uint64_t)ph_read_int(reply);
        size_t found = at;
        while (found < call_count && calls[found].correlation != correlation) found++;
        if (found == call_count) continue; /* logged by `--trace`, before or after the profile */
        calls[found].begin_ns = begin;
        calls[found].end_ns = end;
        calls[found].timed = true;
        at = found + 1;
    }
}

static void read_work(struct ph_reply *reply)
{
    uint32_t left = ph_read_array(reply);
    works = realloc(works, (left / WORK_FIELDS + 1) * sizeof *works);
    if (!works) ph_die("out of host memory");
    for (work_count = 0; left >= WORK_FIELDS; left -= WORK_FIELDS, work_count++) {
        struct ph_profiled_work *work = &works[work_count];
        work->kind = ph_read_int(reply);
        work->correlation = ph_read_int(reply);
        size_t name = (size_t)ph_read_int(reply);
        work->name = name < name_count ? names[name] : "";
        work->device = ph_read_int(reply);
        work->stream = ph_read_int(reply);
        work->begin_ns = ph_read_int(reply);
        work->end_ns = ph_read_int(reply);
        for (size_t i = 0; i < sizeof work->facts / sizeof *work->facts; i++)
            work->facts[i] = ph_read_int(reply);
    }
}

static void ask(void)
{
    struct ph_pack body = {0};
    struct ph_reply reply;
    pthread_mutex_lock(&ph_lock);
    uint64_t req = ph_request_begin_locked(&body);
    ph_pack_uint(&body, since);
    ph_request_locked(PH_MESSAGE_PROFILE, req, &body, 4, &reply, -1);
    atomic_store(&ph_stats()->blocked, 0);
    pthread_mutex_unlock(&ph_lock);
    pthread_mutex_lock(&lock);
    read_names(&reply);
    read_calls(&reply);
    read_work(&reply);
    pthread_mutex_unlock(&lock);
    ph_reply_free(&reply);
}

static struct ph_clock_point *points(size_t *count)
{
    struct ph_clock_point *point = malloc((2 * call_count + 2) * sizeof *point);
    if (!point) ph_die("out of host memory");
    *count = 0;
    point[(*count)++] = first;
    for (size_t i = 0; i < call_count; i++) {
        if (!calls[i].timed) continue;
        point[(*count)++] = (struct ph_clock_point){calls[i].begin_tick, calls[i].begin_ns};
        point[(*count)++] = (struct ph_clock_point){calls[i].end_tick, calls[i].end_ns};
    }
    point[(*count)++] = (struct ph_clock_point){ph_profiler_tick(), ph_profiler_now()};
    return point;
}

struct ph_clock_point *ph_profile_collect(struct ph_profile *profile, size_t *count)
{
    if (!begun) return NULL;
    ph_host_pause();
    ph_profile_pause();
    ask();
    struct ph_clock_point *point = points(count);
    *profile = (struct ph_profile){calls, call_count, works, work_count};
    begun = false;
    ph_timeline_profiled(false);
    ph_host_resume();
    return point;
}
