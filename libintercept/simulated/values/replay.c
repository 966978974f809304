/* replay.c - what a leader's GPU computed, told again to a simulated rank (--values replay).
 *
 * Why it exists: jobs that steer by values which only a GPU knows (routes of tokens, losses, found
 * infinities) then steer as they did where they were recorded. RUN_DIR/values.tbl
 * (docs/wire-protocol.md) is mapped and searched where it lies: entries in order of question, rank
 * and occasion. A rank is told its own values, or where it has not led those of the lowest rank
 * that was asked the same; who asks more often than was recorded is told them from the beginning
 * again. Both are counted. */
#include "base/core.h"
#include "simulated/values/defined.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct ph_value_table_header *file; /* NULL: another policy */
static size_t file_bytes;
static uint32_t own_rank;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_table(void)
{
    char path[512];
    struct stat status;
    const char *policy = ph_env("PHANTORA_VALUES"), *rank = ph_env("RANK");
    if (!policy || strcmp(policy, "replay") != 0) return;
    snprintf(path, sizeof path, "%s/" PH_VALUE_TABLE_FILE, ph_env("PHANTORA_RUN_DIR"));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) ph_die("cannot open %s: %s", path, strerror(errno));
    const struct ph_value_table_header *map =
        mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED || (size_t)status.st_size < sizeof *map ||
        map->magic != PH_VALUE_TABLE_MAGIC || map->version != PH_VALUE_TABLE_VERSION ||
        map->entries > ((size_t)status.st_size - sizeof *map) / sizeof(struct ph_value_table_entry))
        ph_die("%s is no file of recorded values: record them anew", path);
    own_rank = rank ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    file_bytes = (size_t)status.st_size;
    file = map;
}

static int before(const struct ph_value_table_entry *entry, uint64_t hash, uint32_t rank,
                  uint32_t occasion)
{
    if (entry->hash != hash) return entry->hash < hash;
    return entry->rank != rank ? entry->rank < rank : entry->occurrence < occasion;
}

/* The first entry that does not come before (hash, rank, occasion). */
static const struct ph_value_table_entry *search(uint64_t hash, uint32_t rank, uint32_t occasion)
{
    const struct ph_value_table_entry *entries = (const struct ph_value_table_entry *)(file + 1);
    size_t low = 0, high = file->entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(&entries[middle], hash, rank, occasion))
            low = middle + 1;
        else
            high = middle;
    }
    return entries + low;
}

/* The answer to a question that is asked for the n-th time; NULL: nobody was asked. */
static const struct ph_value_table_entry *answer(uint64_t hash, uint32_t occasion, bool *again)
{
    const struct ph_value_table_entry *end = (const struct ph_value_table_entry *)(file + 1) +
                                             file->entries,
                                      *first = search(hash, own_rank, 0);
    if (first == end || first->hash != hash || first->rank != own_rank) first = search(hash, 0, 0);
    if (first == end || first->hash != hash) return NULL;
    const struct ph_value_table_entry *last = search(hash, first->rank, UINT32_MAX) - 1;
    uint32_t recorded = last->occurrence + 1;
    *again = occasion >= recorded;
    const struct ph_value_table_entry *found = search(hash, first->rank, occasion % recorded);
    return found <= last && found->occurrence == occasion % recorded ? found : NULL;
}

bool ph_replay(const char *question, bool wanted, struct ph_replayed *told)
{
    bool again;
    pthread_once(&once, open_table);
    if (!file || strlen(question) >= PH_QUESTION) return false;
    uint64_t hash = ph_question_hash(question);
    uint32_t occasion = ph_occasion(hash);
    const struct ph_value_table_entry *entry = wanted ? answer(hash, occasion, &again) : NULL;
    if (!entry || entry->offset > file_bytes ||
        file_bytes - entry->offset < (uint64_t)entry->key_bytes + entry->bytes)
        return false;
    const char *text = (const char *)file + entry->offset;
    if (strlen(question) != entry->key_bytes || memcmp(text, question, entry->key_bytes) != 0)
        return false;
    *told = (struct ph_replayed){text + entry->key_bytes, entry->bytes, entry->dtype};
    atomic_fetch_add_explicit(&ph_stats()->replayed_values, 1, memory_order_relaxed);
    if (again) atomic_fetch_add_explicit(&ph_stats()->repeated_values, 1, memory_order_relaxed);
    return true;
}

bool ph_replay_read(const void *source, size_t bytes, bool wanted)
{
    char question[PH_QUESTION];
    struct ph_replayed told;
    pthread_once(&once, open_table);
    if (!file || bytes > PH_SMALL_BYTES) return false;
    ph_payload_settle(source, bytes);
    ph_read_question(question, bytes);
    if (!ph_replay(question, wanted && ph_any_unknown(source, bytes), &told) || told.bytes != bytes)
        return false;
    ph_move((void *)source, told.value, bytes);
    return true;
}

PH_API(int, phantora_values_replay,
       (const char *question, int wanted, const void **value, size_t *bytes, int *dtype))
{
    struct ph_replayed told;
    if (!ph_replay(question, wanted, &told)) return 0;
    *value = told.value, *bytes = told.bytes, *dtype = told.dtype;
    return 1;
}
