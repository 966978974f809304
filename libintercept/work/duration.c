/* duration.c - how long a piece of GPU work takes: the shared kernel table first, else the hub.
 *
 * Why it exists: thousands of launches a step repeat a few hundred signatures; the first rank to
 * meet one asks, all others read the answer from a mapped table without a message. Also here: which
 * framework operator encloses the caller, which the hub's estimators are told
 * (docs/wire-protocol.md, LOOKUP). */
#include "work/cudart.h"
#include "base/fnv1a.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCAL = 1 << 14, SHAPES = 64 };

static const struct ph_kernel_table_header *header;
static const struct ph_kernel_table_slot *slots;
/* Answers that found no room in the shared table, and a first level for the others. */
static struct {
    uint64_t key;
    struct ph_time time;
} local[LOCAL];
static pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local struct {
    const char *name;
    uint64_t input_bytes;
    uint64_t hash;     /* of the name and every input's shape: the same in all processes */
    uint32_t launches; /* so far */
    uint32_t calls;    /* so far: of all that take host time (time/host_model.c) */
    uint32_t shapes;
    uint32_t rank[SHAPES / 4];
    int64_t dims[SHAPES];
} operator_now;

PH_API(void, phantora_operator_begin,
       (const char *name, uint64_t input_bytes, uint32_t shapes, const int64_t *dims,
        const uint32_t *ranks))
{
    uint64_t hash = ph_fnv1a_text(input_bytes + PH_FNV1A, name);
    uint32_t used = 0, kept = 0, all = 0;
    for (uint32_t i = 0; i < shapes; i++) {
        hash = (hash ^ ranks[i]) * 0x100000001b3ull;
        for (uint32_t j = 0; j < ranks[i]; j++)
            hash = (hash ^ (uint64_t)dims[all++]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    for (; kept < shapes && kept < SHAPES / 4 && used + ranks[kept] <= SHAPES; kept++) {
        operator_now.rank[kept] = ranks[kept];
        memcpy(operator_now.dims + used, dims + used, ranks[kept] * sizeof *dims);
        used += ranks[kept];
    }
    operator_now.name = name;
    operator_now.input_bytes = input_bytes;
    operator_now.shapes = kept;
    operator_now.hash = hash;
    operator_now.launches = 0;
    operator_now.calls = 0;
}

/* The enclosing operator (NULL: none), and the caller's place among its calls that take host time,
 * from 1; 0 outside of operators, where there is no end to count to. */
uint32_t ph_operator_place(const char **name, bool count)
{
    *name = operator_now.name;
    if (!operator_now.name) return 0;
    operator_now.calls += count;
    return operator_now.calls;
}

/* What tells launches of equal dimensions apart: the enclosing operator, its inputs' shapes, and
 * the launch's place in it. The kernel's own parameters would not do: they are full of the caller's
 * uninitialised stack. */
bool ph_operator_identity(uint64_t *identity)
{
    if (!operator_now.name) return false;
    *identity = (operator_now.hash + ++operator_now.launches) * 0x9e3779b97f4a7c15ull;
    return true;
}

PH_API(void, phantora_operator_end, (void)) { operator_now.name = NULL; }

static void map_table(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/" PH_KERNEL_TABLE_FILE, ph_env("PHANTORA_RUN_DIR"));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) ph_die("cannot open %s: %s", path, strerror(errno));
    const struct ph_kernel_table_header *map =
        mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED || map->magic != PH_KERNEL_TABLE_MAGIC ||
        map->version != PH_KERNEL_TABLE_VERSION ||
        (size_t)status.st_size < sizeof *map + map->capacity * sizeof *slots)
        ph_die("%s is not a kernel table of this version", path);
    slots = (const struct ph_kernel_table_slot *)(map + 1);
    header = map;
}

static bool shared_find(uint64_t key, struct ph_time *time)
{
    uint64_t mask = header->capacity - 1;
    for (uint64_t at = key & mask, seen = 0; seen <= mask; at = (at + 1) & mask, seen++) {
        uint64_t there = atomic_load_explicit(&slots[at].key, memory_order_acquire);
        if (there == 0) return false;
        if (there == key) {
            *time =
                (struct ph_time){atomic_load_explicit(&slots[at].duration_ns, memory_order_relaxed),
                                 slots[at].source, slots[at].contention_permille,
                                 slots[at].bound_by, slots[at].queue_slots};
            return true;
        }
    }
    return false;
}

void ph_pack_context(struct ph_pack *body)
{
    if (!operator_now.name) {
        ph_pack_nil(body);
        return;
    }
    ph_pack_array(body, 4);
    ph_pack_str(body, operator_now.name);
    ph_pack_uint(body, operator_now.input_bytes);
    ph_pack_uint(body, 0); /* outputs are not known when the operator launches */
    ph_pack_array(body, operator_now.shapes);
    const int64_t *dim = operator_now.dims;
    for (uint32_t i = 0; i < operator_now.shapes; i++) {
        ph_pack_array(body, operator_now.rank[i]);
        for (uint32_t j = 0; j < operator_now.rank[i]; j++) ph_pack_int(body, *dim++);
    }
}

static struct ph_time ask_hub(uint64_t key, const struct ph_pack *signature)
{
    struct ph_pack body = {0};
    uint64_t req = ph_request_id();
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_uint(&body, key);
    /* The signature is [kind, fields]; a kernel's fields get two elements more, for the estimators.
     */
    bool kernel = signature->data[1] == PH_SIGNATURE_KERNEL;
    ph_pack_uint(&body, signature->data[1]);
    if (kernel) {
        ph_pack_array(&body, 14);
        ph_pack_raw(&body, signature->data + 3, signature->length - 3);
        ph_pack_context(&body);
        ph_pack_parameters(&body);
    } else {
        ph_pack_raw(&body, signature->data + 2, signature->length - 2);
    }
    ph_send(PH_MESSAGE_LOOKUP, &body, 5);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    struct ph_time time = {.duration_ns = (uint64_t)ph_read_int(&reply)};
    time.source = (uint32_t)ph_read_int(&reply);
    time.drag_permille = (uint32_t)ph_read_int(&reply);
    time.bound_by = (enum ph_bound_by)ph_read_int(&reply);
    time.works = (uint32_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    return time;
}

uint64_t ph_signature_key(const struct ph_pack *signature)
{
    uint64_t key = ph_fnv1a(PH_FNV1A, signature->data, signature->length);
    return key ? key : 1;
}

bool ph_duration_known(uint64_t key, struct ph_time *time)
{
    static uint64_t generation;
    pthread_mutex_lock(&local_lock);
    if (!header) map_table();
    uint64_t current = atomic_load_explicit(&header->generation, memory_order_acquire);
    if (current != generation) { /* a leader knows better by now */
        memset(local, 0, sizeof local);
        generation = current;
    }
    bool found = local[key % LOCAL].key == key;
    if (found) *time = local[key % LOCAL].time;
    pthread_mutex_unlock(&local_lock);
    return found || shared_find(key, time);
}

static void keep(uint64_t key, struct ph_time time)
{
    pthread_mutex_lock(&local_lock);
    local[key % LOCAL].key = key;
    local[key % LOCAL].time = time;
    pthread_mutex_unlock(&local_lock);
}

struct ph_time ph_duration_ask(uint64_t key, const struct ph_pack *signature)
{
    struct ph_time time = ask_hub(key, signature);
    if (time.source >= PH_SOURCES) time.source = PH_SOURCE_GUESS;
    if (time.bound_by >= PH_BOUND_BY_COUNT) time.bound_by = PH_BOUND_BY_MEMORY;
    keep(key, time);
    return time;
}

struct ph_time ph_duration(const struct ph_pack *signature)
{
    return ph_duration_of(ph_signature_key(signature), signature);
}

struct ph_time ph_duration_of(uint64_t key, const struct ph_pack *signature)
{
    struct ph_time time = {0};
    if (!ph_duration_known(key, &time)) return ph_duration_ask(key, signature);
    if (time.source >= PH_SOURCES) time.source = PH_SOURCE_GUESS;
    if (time.bound_by >= PH_BOUND_BY_COUNT) time.bound_by = PH_BOUND_BY_MEMORY;
    keep(key, time);
    return time;
}
