/* replay.c - gives a simulated rank the values that a leader's GPU computed (--values replay).
 *
 * Why it exists: jobs that steer by values which only a GPU knows (routes of tokens, losses, found
 * infinities) then take the recorded path. RUN_DIR/values.tbl (docs/wire-protocol.md) is mapped and
 * searched in place; its entries are sorted by key, rank and occurrence. A rank gets its own
 * values, or if it did not lead, those of the lowest rank that has the key. Beyond the last
 * recorded occurrence the values repeat from the first. Both cases are counted. */
#include "simulated/values/replay.h"
#include "base/environment.h"
#include "base/log.h"
#include "base/map_file.h"
#include "link/connection.h"
#include "work/occurrence.h"
#include "simulated/memory/memory.h"
#include "simulated/values/defined.h"
#include "simulated/values/payload.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ph_value_table_header *file; /* NULL: another policy */
static size_t file_bytes;
static uint32_t own_rank;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_table(void)
{
    char path[512];
    size_t bytes;
    const char *policy = ph_env("PHANTORA_VALUES"), *rank = ph_env("RANK");
    if (!policy || strcmp(policy, "replay") != 0) return;
    const struct ph_value_table_header *map = ph_map_file(PH_VALUE_TABLE_FILE, false, path, &bytes);
    if (bytes < sizeof *map || map->magic != PH_VALUE_TABLE_MAGIC ||
        map->version != PH_VALUE_TABLE_VERSION ||
        map->entries > (bytes - sizeof *map) / sizeof(struct ph_value_table_entry))
        ph_die("%s is not a file of recorded values: record them again", path);
    own_rank = rank ? (uint32_t)strtoul(rank, NULL, 10) : 0;
    file_bytes = bytes;
    file = map;
}

static int before(const struct ph_value_table_entry *entry, uint64_t hash, uint32_t rank,
                  uint32_t occurrence)
{
    if (entry->hash != hash) return entry->hash < hash;
    return entry->rank != rank ? entry->rank < rank : entry->occurrence < occurrence;
}

/* The first entry that is not before (hash, rank, occurrence). */
static const struct ph_value_table_entry *search(uint64_t hash, uint32_t rank, uint32_t occurrence)
{
    const struct ph_value_table_entry *entries = (const struct ph_value_table_entry *)(file + 1);
    size_t low = 0, high = file->entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(&entries[middle], hash, rank, occurrence))
            low = middle + 1;
        else
            high = middle;
    }
    return entries + low;
}

/* The value of an occurrence of a key; NULL when none was recorded. */
static const struct ph_value_table_entry *find(uint64_t hash, uint32_t occurrence, bool *repeated)
{
    const struct ph_value_table_entry *end = (const struct ph_value_table_entry *)(file + 1) +
                                             file->entries,
                                      *first = search(hash, own_rank, 0);
    if (first == end || first->hash != hash || first->rank != own_rank) first = search(hash, 0, 0);
    if (first == end || first->hash != hash) return NULL;
    const struct ph_value_table_entry *last = search(hash, first->rank, UINT32_MAX) - 1;
    if (last < first) return NULL; /* the file is not in order */
    uint64_t count = (uint64_t)last->occurrence + 1;
    *repeated = occurrence >= count;
    uint32_t wanted = (uint32_t)(occurrence % count);
    const struct ph_value_table_entry *found = search(hash, first->rank, wanted);
    return found <= last && found->occurrence == wanted ? found : NULL;
}

bool ph_replay(const char *key, bool wanted, struct ph_replayed *recorded)
{
    bool repeated;
    pthread_once(&once, open_table);
    if (!file || strlen(key) >= PH_REPLAY_KEY) return false;
    uint64_t hash = ph_replay_key_hash(key);
    uint32_t occurrence = ph_occurrence(hash);
    const struct ph_value_table_entry *entry = wanted ? find(hash, occurrence, &repeated) : NULL;
    if (!entry || entry->offset > file_bytes ||
        file_bytes - entry->offset < (uint64_t)entry->key_bytes + entry->value_bytes)
        return false;
    const char *text = (const char *)file + entry->offset;
    if (strlen(key) != entry->key_bytes || memcmp(text, key, entry->key_bytes) != 0) return false;
    *recorded = (struct ph_replayed){text + entry->key_bytes, entry->value_bytes, entry->dtype};
    atomic_fetch_add_explicit(&ph_stats()->replayed_values, 1, memory_order_relaxed);
    if (repeated) atomic_fetch_add_explicit(&ph_stats()->repeated_values, 1, memory_order_relaxed);
    return true;
}

bool ph_replay_read(const void *source, size_t bytes, bool wanted)
{
    char key[PH_REPLAY_KEY];
    struct ph_replayed recorded;
    pthread_once(&once, open_table);
    if (!file || bytes > PH_SMALL_BYTES) return false;
    ph_payload_settle(source, bytes);
    ph_read_replay_key(key, bytes);
    if (!ph_replay(key, wanted && ph_any_undefined(source, bytes), &recorded) ||
        recorded.bytes != bytes)
        return false;
    ph_move((void *)source, recorded.value, bytes);
    return true;
}

PH_API(int, phantora_values_replay,
       (const char *key, int wanted, const void **value, size_t *bytes, int *dtype))
{
    struct ph_replayed recorded;
    if (!ph_replay(key, wanted, &recorded)) return 0;
    *value = recorded.value, *bytes = recorded.bytes, *dtype = recorded.dtype;
    return 1;
}
