/* base/fnv1a.h - 64-bit FNV-1a (Fowler, Noll, Vo), the hash of signatures, names and replay keys.
 *
 * Why it exists: the hub computes the same hashes in Python (kernels/signature.py), so the C code
 * must have exactly one implementation. */
#ifndef PH_FNV1A_H
#define PH_FNV1A_H
#include <stddef.h>
#include <stdint.h>

#define PH_FNV1A 0xcbf29ce484222325ull /* the hash of no bytes */

static inline uint64_t ph_fnv1a(uint64_t hash, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * 0x100000001b3ull;
    return hash;
}

static inline uint64_t ph_fnv1a_text(uint64_t hash, const char *text)
{
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    return hash;
}
#endif
