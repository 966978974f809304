/* map.c - open addressing with linear probing. See map.h.
 *
 * Why it exists: a removed key keeps its slot (value NULL), so entries never move while probing.
 * Growing the table drops such slots. */
#include "leader/gpu/map.h"
#include "base/log.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static size_t slot_of(const struct ph_pair *slot, size_t slots, const void *key)
{
    size_t at = ((uintptr_t)key >> 4) * 0x9e3779b97f4a7c15ull >> 20 & (slots - 1);
    while (slot[at].key && slot[at].key != key) at = (at + 1) & (slots - 1);
    return at;
}

static void grow_locked(struct ph_map *map)
{
    size_t slots = 64;
    while (slots < map->live * 4) slots *= 2;
    struct ph_pair *fresh = calloc(slots, sizeof *fresh);
    if (!fresh) ph_die("out of host memory for a table of %zu handles", slots);
    for (size_t i = 0; i < map->slots; i++)
        if (map->slot[i].value) fresh[slot_of(fresh, slots, map->slot[i].key)] = map->slot[i];
    free(map->slot);
    map->slot = fresh;
    map->slots = slots;
    map->used = map->live;
}

static void *set_locked(struct ph_map *map, const void *key, void *value, bool replace)
{
    if (map->used * 2 >= map->slots) grow_locked(map);
    struct ph_pair *pair = &map->slot[slot_of(map->slot, map->slots, key)];
    void *before = pair->value;
    if (before && !replace) return before;
    if (!pair->key) map->used++;
    if (!before) map->live++;
    *pair = (struct ph_pair){key, value};
    return before;
}

void *ph_map_get(struct ph_map *map, const void *key)
{
    pthread_rwlock_rdlock(&map->lock);
    void *value = map->slots && key ? map->slot[slot_of(map->slot, map->slots, key)].value : NULL;
    pthread_rwlock_unlock(&map->lock);
    return value;
}

void *ph_map_put(struct ph_map *map, const void *key, void *value)
{
    pthread_rwlock_wrlock(&map->lock);
    void *before = set_locked(map, key, value, true);
    pthread_rwlock_unlock(&map->lock);
    return before;
}

void *ph_map_add(struct ph_map *map, const void *key, void *value)
{
    pthread_rwlock_wrlock(&map->lock);
    void *before = set_locked(map, key, value, false);
    pthread_rwlock_unlock(&map->lock);
    return before;
}

void *ph_map_take(struct ph_map *map, const void *key)
{
    void *value = NULL;
    pthread_rwlock_wrlock(&map->lock);
    if (map->slots && key) {
        struct ph_pair *pair = &map->slot[slot_of(map->slot, map->slots, key)];
        value = pair->value;
        if (value) map->live--;
        pair->value = NULL;
    }
    pthread_rwlock_unlock(&map->lock);
    return value;
}

static void reset(struct ph_map *map)
{
    free(map->slot);
    map->slot = NULL;
    map->slots = map->used = map->live = 0;
}

void ph_map_clear(struct ph_map *map)
{
    pthread_rwlock_wrlock(&map->lock);
    reset(map);
    pthread_rwlock_unlock(&map->lock);
}
