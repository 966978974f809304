/* base/hash_map.c - open addressing with linear probing. See base/hash_map.h. */
#include "base/hash_map.h"
#include "base/log.h"
#include <stdlib.h>

enum { SMALLEST = 64 };

/* Where the search for a key starts: the product's highest bits, which depend on all bits of the
 * key. Addresses are aligned, so their lowest bits say nothing. */
static size_t home_of(const struct ph_hash_map *map, uint64_t key)
{
    return key * 0x9e3779b97f4a7c15ull >> (__builtin_clzll(map->capacity) + 1);
}

/* The key's entry, or the empty one where it belongs. */
static struct ph_hash_entry *find(const struct ph_hash_map *map, uint64_t key)
{
    size_t at = home_of(map, key);
    while (map->entry[at].value && map->entry[at].key != key) at = (at + 1) & (map->capacity - 1);
    return &map->entry[at];
}

static void grow(struct ph_hash_map *map)
{
    struct ph_hash_map larger = {.capacity = map->capacity ? map->capacity * 2 : SMALLEST,
                                 .used = map->used};
    larger.entry = calloc(larger.capacity, sizeof *larger.entry);
    if (!larger.entry) ph_die("out of host memory for a map of %zu entries", larger.capacity);
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entry[i].value) *find(&larger, map->entry[i].key) = map->entry[i];
    free(map->entry);
    *map = larger;
}

uint64_t ph_hash_map_get(const struct ph_hash_map *map, uint64_t key)
{
    return map->capacity ? find(map, key)->value : 0;
}

uint64_t ph_hash_map_put(struct ph_hash_map *map, uint64_t key, uint64_t value)
{
    if (!value) ph_die("a map was given no value for the key %#llx", (unsigned long long)key);
    if ((map->used + 1) * 4 > map->capacity * 3) grow(map);
    struct ph_hash_entry *entry = find(map, key);
    uint64_t before = entry->value;
    if (!before) map->used++;
    *entry = (struct ph_hash_entry){key, value};
    return before;
}

uint64_t ph_hash_map_take(struct ph_hash_map *map, uint64_t key)
{
    if (!map->capacity) return 0;
    struct ph_hash_entry *entry = map->entry;
    size_t mask = map->capacity - 1, hole = (size_t)(find(map, key) - entry);
    uint64_t value = entry[hole].value;
    if (!value) return 0;
    /* An entry moves back into the hole unless its search starts behind the hole. */
    for (size_t at = (hole + 1) & mask; entry[at].value; at = (at + 1) & mask) {
        size_t from_home = (at - home_of(map, entry[at].key)) & mask;
        if (from_home < ((at - hole) & mask)) continue;
        entry[hole] = entry[at];
        hole = at;
    }
    entry[hole] = (struct ph_hash_entry){0};
    map->used--;
    return value;
}

void ph_hash_map_clear(struct ph_hash_map *map)
{
    free(map->entry);
    *map = (struct ph_hash_map){0};
}
