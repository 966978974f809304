/* base/memory.h - the kinds of a job's pointers, the addresses of device memory, and the size
 * limits of buffers whose values are carried. */
#ifndef PH_MEMORY_H
#define PH_MEMORY_H
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ph_allocation {
    uintptr_t base;
    size_t bytes;
    int device;
    enum ph_memory_kind kind;
    uint64_t id;
};

static inline bool ph_all_zero(const void *pointer, size_t bytes)
{
    const unsigned char *at = pointer;
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

/* ---- addresses of a simulated GPU ---- */
/* ThreadSanitizer leaves a program a part of the addresses. The macro PH_BESIDE_THREAD_SANITIZER is
 * for a library that is not instrumented, in a program that is. */
#if defined __SANITIZE_THREAD__ || defined PH_BESIDE_THREAD_SANITIZER
#define PH_WINDOW_BASE 0x560000000000ull
#define PH_SLICE_BYTES (1ull << 36)
#else
#define PH_WINDOW_BASE 0x7a0000000000ull /* cudaMalloc: one slice per device */
#define PH_SLICE_BYTES (1ull << 39)
#endif
#define PH_WINDOW_END (PH_WINDOW_BASE + 8 * PH_SLICE_BYTES)
#define PH_VIRTUAL_BASE 0x600000000000ull /* cuMemAddressReserve */
#define PH_VIRTUAL_END 0x700000000000ull

/* ---- values ---- */
#define PH_SMALL_BYTES 65536u /* values of collectives up to this size are carried */
/* Collectives of integers are carried up to this size: integer tensors this small have values. */
#define PH_INDEX_BYTES (8u << 20)
#define PH_COPY_BYTES (1u << 20) /* values of copies up to this size are carried */
/* Collectives of bytes, which are pickled objects, are carried up to this size per rank ... */
#define PH_OBJECT_BYTES (16u << 20)
#define PH_OBJECTS_BYTES (64u << 20) /* ... and up to this size for all ranks together */
#endif
