/* duration.c - how long a piece of GPU work takes: the shared kernel table first, else the hub.
 *
 * Why it exists: thousands of launches a step repeat a few hundred signatures; the first rank to
 * meet one asks, all others read the answer from a mapped table without a message. */
#include "work/duration.h"
#include "base/environment.h"
#include "base/log.h"
#include "link/connection.h"
#include "time/operators.h"
#include "work/signature.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCAL = 1 << 14 };

static const struct ph_kernel_table_header *header;
static const struct ph_kernel_table_slot *slots;
/* Answers that found no room in the shared table, and a first level for the others. */
static struct {
    uint64_t key;
    struct ph_time time;
} local[LOCAL];
static pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;

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
