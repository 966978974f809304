/* base/hash_map.h - a hash map from 64-bit keys to 64-bit values, or to pointers.
 *
 * Why it exists: several parts find their state by an address or by a hash. One tested map serves
 * them all.
 *
 * Rule: a value of 0 (NULL) means "no value", so it cannot be put. Every key is allowed, 0 too.
 * Thread rule: the map has no lock. Its user's lock guards it: any number of threads may be in
 * ph_hash_map_get at once, and every other function needs the map for itself.
 *
 * Invariants: the capacity is 0 or a power of two. At most three quarters of the entries are in
 * use, so a search always ends at an empty one. Between the entry at which a key's search starts
 * and the entry that holds the key, no entry is empty. */
#ifndef PH_HASH_MAP_H
#define PH_HASH_MAP_H
#include <stddef.h>
#include <stdint.h>

struct ph_hash_map { /* all zero: empty */
    struct ph_hash_entry {
        uint64_t key, value; /* a value of 0: the entry is empty */
    } *entry;
    size_t capacity, used;
};

/* 0: none. O(1) */
uint64_t ph_hash_map_get(const struct ph_hash_map *map, uint64_t key);
/* Returns the old value, or 0. Amortised O(1). Ends the process if there is no memory to grow. */
uint64_t ph_hash_map_put(struct ph_hash_map *map, uint64_t key, uint64_t value);
/* Removes the key and returns its value; 0: none. O(1) */
uint64_t ph_hash_map_take(struct ph_hash_map *map, uint64_t key);
/* Removes all keys and frees the entries. What the values point to belongs to the caller. */
void ph_hash_map_clear(struct ph_hash_map *map);
#endif
