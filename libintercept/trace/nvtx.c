/* trace/nvtx.c - NVTX ranges and marks in the trace log.
 *
 * Why it exists: jobs mark their phases with NVTX for NVIDIA's profilers. NVTX is a header: it
 * loads the tool that NVTX_INJECTION64_PATH names, and asks it for functions. With `--trace` the
 * launcher names this library. Rules: ranges of a thread nest within their domain, and need not
 * nest with the framework's operators. A range that began before what is traced is left out. The
 * interface is that of NVTX 3, nvtxDetail/nvtxTypes.h. */
#include "base/api.h"
#include "base/fork.h"
#include "trace/trace_log.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

enum { CALLBACKS = 1, CORE = 1, CORE2 = 5, NO_TRACKING = -2 };
enum { ASCII = 1, UNICODE = 2, REGISTERED = 3 };
enum { OPEN = 64, NAME = 512, STARTED = 1024 };

/* nvtxEventAttributes_t */
struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
};

struct domain {
    char *name;
};

struct registered {
    char *text;
};

struct range {
    const struct domain *domain;
    bool logged;
    struct ph_log_operator op;
};

static _Thread_local struct {
    int depth;
    struct range open[OPEN];
} me;

/* Ranges that may end on another thread. An identifier is a place and how often it was taken. */
static pthread_mutex_t PH_FREE_IN_CHILD started_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool used;
    uint32_t times;
    struct range range;
} started[STARTED];

/* ---- texts ---- */
static void put_wide(char *to, size_t room, const wchar_t *from)
{
    size_t at = 0;
    for (; *from && at + 5 < room; from++) {
        uint32_t c = (uint32_t)*from;
        if (c < 0x80) {
            to[at++] = (char)c;
        } else if (c < 0x800) {
            to[at++] = (char)(0xc0 | c >> 6);
            to[at++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            to[at++] = (char)(0xe0 | c >> 12);
            to[at++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[at++] = (char)(0x80 | (c & 0x3f));
        } else {
            to[at++] = (char)(0xf0 | (c >> 18 & 7));
            to[at++] = (char)(0x80 | (c >> 12 & 0x3f));
            to[at++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[at++] = (char)(0x80 | (c & 0x3f));
        }
    }
    to[at] = 0;
}

/* The message of an event; "" for none. `room` receives what has to be converted. */
static const char *message_of(const struct attributes *event, char room[NAME])
{
    if (!event || !event->message) return "";
    switch (event->message_type) {
    case ASCII: return event->message;
    case UNICODE: return put_wide(room, NAME, event->message), room;
    case REGISTERED: return ((const struct registered *)event->message)->text;
    default: return "";
    }
}

/* ---- ranges ---- */
static void begin(struct range *range, const struct domain *domain, const char *message)
{
    char name[NAME];
    range->domain = domain;
    if (domain && domain->name[0]) {
        snprintf(name, sizeof name, "%s: %s", domain->name, message);
        message = name;
    }
    range->logged = ph_trace_range_begin(message && message[0] ? message : "(no name)", &range->op);
}

static void end(struct range *range)
{
    if (range->logged) ph_trace_range_end(&range->op);
    range->logged = false;
}

/* The number of this thread's open ranges of a domain. */
static int level(const struct domain *domain)
{
    int count = 0;
    for (int i = 0; i < me.depth; i++) count += me.open[i].domain == domain;
    return count;
}

static int push(const struct domain *domain, const char *message)
{
    if (me.depth == OPEN) return NO_TRACKING;
    int found = level(domain);
    begin(&me.open[me.depth], domain, message);
    me.depth++;
    return found;
}

static int pop(const struct domain *domain)
{
    for (int i = me.depth - 1; i >= 0; i--) {
        if (me.open[i].domain != domain) continue;
        end(&me.open[i]);
        memmove(&me.open[i], &me.open[i + 1], (size_t)(me.depth - 1 - i) * sizeof me.open[0]);
        me.depth--;
        return level(domain);
    }
    return NO_TRACKING;
}

static void mark(const struct domain *domain, const char *message)
{
    struct range range;
    begin(&range, domain, message);
    end(&range);
}

static uint64_t start(const struct domain *domain, const char *message)
{
    struct range range;
    uint64_t id = 0;
    begin(&range, domain, message);
    pthread_mutex_lock(&started_lock);
    for (uint32_t i = 0; i < STARTED && !id; i++) {
        if (started[i].used) continue;
        started[i].used = true;
        started[i].range = range;
        id = (uint64_t)++started[i].times << 32 | (i + 1);
    }
    pthread_mutex_unlock(&started_lock);
    return id;
}

static void stop(uint64_t id)
{
    uint64_t place = (id & 0xffffffff) - 1;
    struct range range = {.logged = false};
    if (place >= STARTED) return;
    pthread_mutex_lock(&started_lock);
    if (started[place].used && started[place].times == id >> 32) {
        started[place].used = false;
        range = started[place].range;
    }
    pthread_mutex_unlock(&started_lock);
    end(&range);
}

/* ---- NVTX's functions, by module and number ---- */
static void mark_ex(const struct attributes *event)
{
    char room[NAME];
    mark(NULL, message_of(event, room));
}
static void mark_a(const char *message) { mark(NULL, message); }
static void mark_w(const wchar_t *message)
{
    char room[NAME];
    put_wide(room, sizeof room, message);
    mark(NULL, room);
}
static uint64_t start_ex(const struct attributes *event)
{
    char room[NAME];
    return start(NULL, message_of(event, room));
}
static uint64_t start_a(const char *message) { return start(NULL, message); }
static uint64_t start_w(const wchar_t *message)
{
    char room[NAME];
    put_wide(room, sizeof room, message);
    return start(NULL, room);
}
static int push_ex(const struct attributes *event)
{
    char room[NAME];
    return push(NULL, message_of(event, room));
}
static int push_a(const char *message) { return push(NULL, message); }
static int push_w(const wchar_t *message)
{
    char room[NAME];
    put_wide(room, sizeof room, message);
    return push(NULL, room);
}
static int pop_default(void) { return pop(NULL); }

static void domain_mark(const struct domain *domain, const struct attributes *event)
{
    char room[NAME];
    mark(domain, message_of(event, room));
}
static uint64_t domain_start(const struct domain *domain, const struct attributes *event)
{
    char room[NAME];
    return start(domain, message_of(event, room));
}
static void domain_stop(const struct domain *domain, uint64_t id)
{
    (void)domain;
    stop(id);
}
static int domain_push(const struct domain *domain, const struct attributes *event)
{
    char room[NAME];
    return push(domain, message_of(event, room));
}
/* Handles live as long as the process: a header has no way to say which of them it still uses. */
static struct registered *register_a(const struct domain *domain, const char *text)
{
    (void)domain;
    struct registered *made = malloc(sizeof *made);
    if (made && !(made->text = strdup(text ? text : ""))) free(made), made = NULL;
    return made;
}
static struct registered *register_w(const struct domain *domain, const wchar_t *text)
{
    char room[NAME];
    put_wide(room, sizeof room, text);
    return register_a(domain, room);
}
static struct domain *create_a(const char *name)
{
    struct domain *made = malloc(sizeof *made);
    if (made && !(made->name = strdup(name ? name : ""))) free(made), made = NULL;
    return made;
}
static struct domain *create_w(const wchar_t *name)
{
    char room[NAME];
    put_wide(room, sizeof room, name);
    return create_a(room);
}

typedef void function(void);
#define AT(number, name) [number] = (function *)(name)
static function *const core[] = {
    AT(1, mark_ex), AT(2, mark_a),  AT(3, mark_w),       AT(4, start_ex),
    AT(5, start_a), AT(6, start_w), AT(7, stop),         AT(8, push_ex),
    AT(9, push_a),  AT(10, push_w), AT(11, pop_default),
};
static function *const core2[] = {
    AT(1, domain_mark), AT(2, domain_start), AT(3, domain_stop), AT(4, domain_push), AT(5, pop),
    AT(10, register_a), AT(11, register_w),  AT(12, create_a),   AT(13, create_w),
};

struct callbacks {
    size_t size;
    int (*table)(int module, function ****table, unsigned *size);
};

static bool fill(const struct callbacks *from, int module, function *const *ours, unsigned count)
{
    function ***table = NULL;
    unsigned size = 0;
    if (!from->table(module, &table, &size) || !table) return false;
    for (unsigned i = 1; i < count && i < size; i++)
        if (ours[i] && table[i]) *table[i] = ours[i];
    return true;
}

/* NVTX calls it once for each library that includes its header. Returns 1 when ranges are wanted.
 */
PH_API(int, InitializeInjectionNvtx2, (const void *(*tables)(uint32_t)))
{
    const struct callbacks *from = tables ? tables(CALLBACKS) : NULL;
    if (!from || from->size < sizeof *from || !phantora_trace_wanted()) return 0;
    return fill(from, CORE, core, sizeof core / sizeof *core) &&
           fill(from, CORE2, core2, sizeof core2 / sizeof *core2);
}
