/* map.c - see map.h. */
#include "leader/gpu/map.h"

void *ph_map_get(struct ph_map *map, const void *key)
{
    pthread_rwlock_rdlock(&map->lock);
    void *value = (void *)ph_hash_map_get(&map->map, (uintptr_t)key);
    pthread_rwlock_unlock(&map->lock);
    return value;
}

void *ph_map_put(struct ph_map *map, const void *key, void *value)
{
    pthread_rwlock_wrlock(&map->lock);
    void *before = (void *)ph_hash_map_put(&map->map, (uintptr_t)key, (uintptr_t)value);
    pthread_rwlock_unlock(&map->lock);
    return before;
}

void *ph_map_add(struct ph_map *map, const void *key, void *value)
{
    pthread_rwlock_wrlock(&map->lock);
    void *before = (void *)ph_hash_map_get(&map->map, (uintptr_t)key);
    if (!before) ph_hash_map_put(&map->map, (uintptr_t)key, (uintptr_t)value);
    pthread_rwlock_unlock(&map->lock);
    return before;
}

void *ph_map_take(struct ph_map *map, const void *key)
{
    pthread_rwlock_wrlock(&map->lock);
    void *value = (void *)ph_hash_map_take(&map->map, (uintptr_t)key);
    pthread_rwlock_unlock(&map->lock);
    return value;
}

void ph_map_clear(struct ph_map *map)
{
    pthread_rwlock_wrlock(&map->lock);
    ph_hash_map_clear(&map->map);
    pthread_rwlock_unlock(&map->lock);
}
