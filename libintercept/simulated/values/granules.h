/* granules.h - the granules of 64 KiB into which device addresses are divided.
 *
 * Why it exists: the dirty bitmap (dirty.c) and the map of defined bytes (defined.c) both keep bits
 * per granule. The granules of the window and of the virtual range are numbered consecutively. */
#ifndef PH_GRANULES_H
#define PH_GRANULES_H
#include "base/memory.h"
#include <stddef.h>
#include <stdint.h>

enum { GRANULE_SHIFT = 16, WORD = 64 /* granules per word of a bitmap */ };
#define GRANULE ((size_t)1 << GRANULE_SHIFT)
#define WINDOW_GRANULES ((PH_WINDOW_END - PH_WINDOW_BASE) >> GRANULE_SHIFT)
#define VIRTUAL_GRANULES ((PH_VIRTUAL_END - PH_VIRTUAL_BASE) >> GRANULE_SHIFT)
#define BITMAP_BYTES ((WINDOW_GRANULES + VIRTUAL_GRANULES) / 8)

/* An address for which ph_is_device is true. */
static inline size_t granule_of(uintptr_t address)
{
    return address >= PH_WINDOW_BASE
               ? (address - PH_WINDOW_BASE) >> GRANULE_SHIFT
               : WINDOW_GRANULES + ((address - PH_VIRTUAL_BASE) >> GRANULE_SHIFT);
}

/* The bits of granules first ... last that lie in a word of a bitmap. */
static inline uint64_t word_mask(size_t word, size_t first, size_t last)
{
    uint64_t mask = ~0ull;
    if (word == first / WORD) mask &= ~0ull << first % WORD;
    if (word == last / WORD) mask &= ~0ull >> (WORD - 1 - last % WORD);
    return mask;
}

/* Zeroed memory of which the host only provides the pages that are written (dirty.c). */
void *ph_reserve(size_t bytes);
#endif
