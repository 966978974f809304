/* work/accesses.h - what a thread of a kernel does, by the kernel's machine code.
 *
 * Why it exists: a kernel compiled at run time (Triton, NVRTC) has no C++ name that gives its
 * types, and its parameters are addresses. Its machine code says how wide every access is, and how
 * much there is to compute. */
#ifndef PH_WORK_ACCESSES_H
#define PH_WORK_ACCESSES_H
#include "base/msgpack.h"
#include "work/cubin.h"
#include <stdbool.h>
#include <stdint.h>

/* Bytes of global memory, and numbers of instructions. An access of at least 8 bytes a thread is
 * wide; neighbouring threads usually share the cache lines of narrow ones. Kept: a wide one that
 * asks the cache to keep what it reads, since it is read again. Atomic: operations on memory, such
 * as an addition. Special: exp, rsqrt and their like. */
enum ph_access {
    PH_READ_WIDE,
    PH_READ_KEPT,
    PH_READ_NARROW,
    PH_WRITTEN_WIDE,
    PH_WRITTEN_NARROW,
    PH_ATOMIC,
    PH_INSTRUCTIONS,
    PH_SPECIAL,
    PH_ACCESSES
};

/* What one thread does. `total`: outside of loops, and in loops that say how often they run;
 * `per_trip`: in one trip of each other loop. What is predicated counts as done. What a branch may
 * skip counts as skipped if it stores nothing and reads only constant tables: the slow path of sin
 * and cos. */
struct ph_accesses {
    bool known;
    uint64_t total[PH_ACCESSES], per_trip[PH_ACCESSES];
};

/* Of the kernel whose machine code the section holds. Not known below compute capability 7.0, whose
 * instructions are encoded in another way, and for a section outside of the image. */
struct ph_accesses ph_accesses_of(const struct ph_cubin *image, const Elf64_Shdr *section);
/* packs them as LOOKUP's `context`: [total, per_trip] (docs/wire-protocol.md) */
void ph_accesses_pack(struct ph_pack *pack, const struct ph_accesses *accesses);
#endif
