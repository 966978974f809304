/* duration.c - how long a piece of GPU work takes: the shared kernel table first, else the hub.
 *
 * Why it exists: thousands of launches per step repeat a few hundred signatures. The first rank
 * that meets a signature asks the hub. All other ranks read the answer from a mapped table, without
 * a message. */
#include "base/fork.h"
#include "work/duration.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/map_file.h"
#include "link/connection.h"
#include "time/operators.h"
#include "work/signature.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { LOCAL = 1 << 14 };

static const struct ph_kernel_table_header *header;
static const struct ph_kernel_table_slot *slots;
/* Answers of the hub, in case the shared table has no room for them. */
static struct {
    uint64_t key;
    struct ph_time time;
} local[LOCAL];
static pthread_mutex_t PH_FREE_IN_CHILD local_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void map_table(void)
{
    char path[512];
    size_t bytes;
    const struct ph_kernel_table_header *map =
        ph_map_file(PH_KERNEL_TABLE_FILE, false, path, &bytes);
    if (bytes < sizeof *map || map->magic != PH_KERNEL_TABLE_MAGIC ||
        map->version != PH_KERNEL_TABLE_VERSION ||
        bytes < sizeof *map + map->capacity * sizeof *slots)
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
            *time = (struct ph_time){
                .duration_ns = atomic_load_explicit(&slots[at].duration_ns, memory_order_relaxed),
                .source = slots[at].source,
                .contention_permille = slots[at].contention_permille,
                .bound_by = slots[at].bound_by,
                .queue_slots = slots[at].queue_slots,
                .flop = slots[at].flop,
            };
            return true;
        }
    }
    return false;
}

/* Takes apart what shares a number, and replaces values that only a hub of another version may
 * send. */
static struct ph_time checked(struct ph_time time)
{
    time.elsewhere = time.source & PH_SOURCE_FLAG_ELSEWHERE;
    time.source &= ~(uint32_t)PH_SOURCE_FLAG_ELSEWHERE;
    if (time.source >= PH_SOURCES) time.source = PH_SOURCE_GUESS;
    time.class = (enum ph_kernel_class)((uint32_t)time.bound_by >> 8 & 0xff);
    time.precision = (enum ph_precision)((uint32_t)time.bound_by >> 16 & 0xff);
    time.halved = (uint32_t)time.bound_by >> 24 & 1;
    time.bound_by = (enum ph_bound_by)((uint32_t)time.bound_by & 0xff);
    if (time.class >= PH_KERNEL_CLASSES) time.class = PH_KERNEL_CLASS_OTHER;
    if (time.precision >= PH_PRECISIONS) time.precision = PH_PRECISION_UNCOUNTED;
    if (time.bound_by >= PH_BOUND_BY_COUNT) time.bound_by = PH_BOUND_BY_MEMORY;
    return time;
}

static struct ph_time ask_hub(const struct ph_signature *signature)
{
    /* a kernel has two more fields, for the estimators */
    bool kernel = signature->kind == PH_SIGNATURE_KERNEL;
    struct ph_pack body = {0};
    uint64_t req = ph_request_id();
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_uint(&body, signature->key);
    ph_pack_uint(&body, signature->kind);
    ph_pack_array(&body, signature->count + (kernel ? 2 : 0));
    ph_pack_raw(&body, signature->fields.data, signature->fields.length);
    if (kernel) ph_pack_launch_context(&body, signature), ph_pack_parameters(&body, signature);
    ph_send(PH_MESSAGE_LOOKUP, &body, 5);
    ph_pack_free(&body);
    struct ph_reply reply;
    ph_wait(req, &reply, -1);
    struct ph_time time = {.duration_ns = (uint64_t)ph_read_int(&reply)};
    time.source = (uint32_t)ph_read_int(&reply);
    time.contention_permille = (uint32_t)ph_read_int(&reply);
    time.bound_by = (enum ph_bound_by)ph_read_int(&reply);
    time.queue_slots = (uint32_t)ph_read_int(&reply);
    time.flop = (uint64_t)ph_read_int(&reply);
    ph_reply_free(&reply);
    return checked(time);
}

bool ph_duration_known(uint64_t key, struct ph_time *time)
{
    static uint64_t generation;
    pthread_once(&table_once, map_table);
    if (shared_find(key, time)) return *time = checked(*time), true;
    pthread_mutex_lock(&local_lock);
    uint64_t current = atomic_load_explicit(&header->generation, memory_order_acquire);
    if (current != generation) { /* a leader has measured something since */
        memset(local, 0, sizeof local);
        generation = current;
    }
    bool found = local[key % LOCAL].key == key;
    if (found) *time = local[key % LOCAL].time;
    pthread_mutex_unlock(&local_lock);
    return found;
}

struct ph_time ph_duration_ask(const struct ph_signature *signature)
{
    struct ph_time time = ask_hub(signature);
    pthread_mutex_lock(&local_lock);
    local[signature->key % LOCAL].key = signature->key;
    local[signature->key % LOCAL].time = time;
    pthread_mutex_unlock(&local_lock);
    return time;
}

struct ph_time ph_duration(const struct ph_signature *signature)
{
    struct ph_time time = {0};
    return ph_duration_known(signature->key, &time) ? time : ph_duration_ask(signature);
}
