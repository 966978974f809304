/* time/cpu_probe.c - a fixed piece of work, timed within the ranks of a run.
 *
 * Why it exists: what a run measures of host time depends on how fast the machine is while it
 * measures. A core that is shared with another thread makes all code slower by up to a half. The
 * probe runs among the job's own code and suffers the same, so the ratio of the two does not depend
 * on it.
 *
 * Like a framework's, its code and data are larger than the first-level caches: a thousand
 * functions called through pointers, each short and seldom, and small allocations. */
#include "time/cpu_probe.h"
#include "base/cpu_time.h"
#include <stdlib.h>

enum { WORDS = 8192 /* 64 KiB */, CALLS = 2048 };

static uint64_t words[WORDS];

#define AT(number) words[(number) & (WORDS - 1)]

/* Each is compiled by itself, about 150 bytes, and takes its own way through `words`. */
#define FUNCTION(n)                                                          \
    __attribute__((noinline)) static uint64_t f##n(uint64_t x)               \
    {                                                                        \
        uint64_t a = AT(n * 37 + (x & 7)), b = AT(n * 101);                  \
        if (a & (1 << n % 13))                                               \
            a += x * (n | 1);                                                \
        else                                                                 \
            b ^= x + n;                                                      \
        if (b > a)                                                           \
            AT(n * 53) = a + n, x += b;                                      \
        else                                                                 \
            x ^= a >> n % 17;                                                \
        if (n % 8 == 0) {                                                    \
            uint64_t *fresh = malloc(24 + n % 200);                          \
            if (fresh) fresh[0] = x, fresh[2] = n, x += fresh[0] ^ fresh[2]; \
            free(fresh);                                                     \
        }                                                                    \
        AT(n * 17) += x & 15;                                                \
        return x * 2654435761u + n;                                          \
    }
#define NAME(n) f##n,
#define EIGHT(M, n) M(n##0) M(n##1) M(n##2) M(n##3) M(n##4) M(n##5) M(n##6) M(n##7)
#define SIXTY_FOUR(M, n) \
    EIGHT(M, n##0)       \
    EIGHT(M, n##1)       \
    EIGHT(M, n##2)       \
    EIGHT(M, n##3) EIGHT(M, n##4) EIGHT(M, n##5) EIGHT(M, n##6) EIGHT(M, n##7)
#define ALL(M)        \
    SIXTY_FOUR(M, 1)  \
    SIXTY_FOUR(M, 2)  \
    SIXTY_FOUR(M, 3)  \
    SIXTY_FOUR(M, 4)  \
    SIXTY_FOUR(M, 5)  \
    SIXTY_FOUR(M, 6)  \
    SIXTY_FOUR(M, 7)  \
    SIXTY_FOUR(M, 8)  \
    SIXTY_FOUR(M, 9)  \
    SIXTY_FOUR(M, 11) \
    SIXTY_FOUR(M, 12) \
    SIXTY_FOUR(M, 13) \
    SIXTY_FOUR(M, 14) SIXTY_FOUR(M, 15) SIXTY_FOUR(M, 16) SIXTY_FOUR(M, 17)

ALL(FUNCTION)
static uint64_t (*const functions[])(uint64_t) = {ALL(NAME)};

uint64_t ph_cpu_probe(void)
{
    static volatile uint64_t used; /* keeps the compiler from removing the work */
    uint32_t draw = 99;
    uint64_t x = 1, start;
    /* Only once: each probe changes `words`, so that the processor cannot learn its branches. */
    if (!words[1])
        for (uint32_t i = 0; i < WORDS; i++) words[i] = i * 0x9e3779b97f4a7c15ull;
    start = ph_thread_cpu_ns();
    for (int i = 0; i < CALLS; i++) {
        draw = draw * 1664525u + 1013904223u;
        x = functions[(draw >> 16) % (sizeof functions / sizeof *functions)](x);
    }
    used += x;
    return ph_thread_cpu_ns() - start;
}
