/* map.h - a map from addresses to addresses: from real handles to their shadows.
 *
 * Why it exists: streams, events and kernels of the real libraries are opaque pointers, and each
 * needs its own state here. It is base/hash_map.h with a lock, because the job's threads use
 * handles at the same time. */
#ifndef PH_MAP_H
#define PH_MAP_H
#include "base/hash_map.h"
#include <pthread.h>

struct ph_map {
    pthread_rwlock_t lock;
    struct ph_hash_map map;
};
#define PH_MAP_INIT {PTHREAD_RWLOCK_INITIALIZER, {NULL, 0, 0}}

void *ph_map_get(struct ph_map *map, const void *key); /* NULL: none. O(1) */
/* returns the old value, or NULL. Amortised O(1) */
void *ph_map_put(struct ph_map *map, const void *key, void *value);
/* As ph_map_put, unless the key has a value: that stays and is returned. NULL: `value` was put. */
void *ph_map_add(struct ph_map *map, const void *key, void *value);
/* removes the value and returns it; NULL: none */
void *ph_map_take(struct ph_map *map, const void *key);
/* removes all; the values belong to the caller */
void ph_map_clear(struct ph_map *map);
#endif
