/* work/accesses.h - what a thread of a kernel does, by the kernel's machine code.
 *
 * Why it exists: a kernel compiled at run time (Triton, NVRTC) has no C++ name that gives its
 * types, and its parameters are addresses. Its machine code says how wide every access is, and how
 * much there is to compute. */
#ifndef PH_WORK_ACCESSES_H
#define PH_WORK_ACCESSES_H
#include "base/msgpack.h"
#include <stdbool.h>
#include <stddef.h>
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

/* `code`: the machine code of one kernel. Not known for a compute capability below 7.0 */
struct ph_accesses ph_accesses_of(const void *code, size_t bytes, unsigned capability);
/* LOOKUP's `context` of such a kernel: [total, per_trip] */
void ph_accesses_pack(struct ph_pack *pack, const struct ph_accesses *accesses);
#endif
