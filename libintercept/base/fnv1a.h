/* fnv1a.h - FNV-1a of 64 bits (Fowler, Noll, Vo), by which signatures, names and questions are
 * found again.
 *
 * Why it exists: the hub computes the same hashes in Python (kernels/signature.py), so there must
 * be one of each. */
#ifndef PH_FNV1A_H
#define PH_FNV1A_H
#include <stddef.h>
#include <stdint.h>

#define PH_FNV1A 0xcbf29ce484222325ull /* of nothing */

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
