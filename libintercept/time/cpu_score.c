/* time/cpu_score.c - how fast this machine runs code like a framework's, as one number.
 *
 * Why it exists: host times recorded on one machine are used on another. The ratio of the two
 * machines' scores scales them. The work is fixed and resembles an interpreter's: dependent loads
 * from a table larger than a first-level cache, unpredictable branches, integer arithmetic, and
 * small allocations. The score is the thread CPU time of the fastest of PASSES passes, in
 * nanoseconds. */
#include "time/cpu_score.h"
#include "base/api.h"
#include "base/cpu_time.h"
#include <stdlib.h>

enum {
    PASSES = 7,
    STEPS = 1 << 18,
    TABLE = 1 << 17 /* words: 512 KiB */,
    LIVE = 256,
    ALLOCATE_EVERY = 16
};

static uint64_t pass(uint32_t *table)
{
    void *live[LIVE] = {0};
    uint64_t sum = 0;
    uint32_t at = 1;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t word = table[at & (TABLE - 1)];
        switch (word >> 28) { /* sixteen cases, so that no branch predictor knows the next */
        case 0:
        case 1:
        case 2: sum += word; break;
        case 3:
        case 4: sum ^= (uint64_t)word << 7; break;
        case 5: sum = sum / (word | 1) + word; break;
        case 6:
        case 7: sum = sum >> 3 | sum << 61; break;
        case 8: table[(at + 7) & (TABLE - 1)] ^= (uint32_t)sum & 0xffff; break;
        case 9:
        case 10: sum *= word | 1; break;
        default: sum -= word & 0xff; break;
        }
        at = at * 1664525u + word;
        if (i % ALLOCATE_EVERY == 0) {
            void **place = &live[(word >> 8) % LIVE];
            free(*place);
            *place = malloc(16 + (word & 0x1ff));
        }
    }
    for (int i = 0; i < LIVE; i++) free(live[i]);
    return sum + at;
}

static void fill(uint32_t *table)
{
    for (uint32_t i = 0; i < TABLE; i++) {
        uint32_t x = i * 0x9e3779b9u;
        x = (x ^ x >> 16) * 0x85ebca6bu;
        table[i] = x ^ x >> 13;
    }
}

/* Returns nanoseconds of thread CPU time; smaller is faster. Takes about 20 ms. 0: out of memory.
 */
PH_EXPORT uint64_t phantora_host_score(void)
{
    static volatile uint64_t used; /* keeps the compiler from removing a pass */
    uint32_t *table = malloc(TABLE * sizeof *table);
    uint64_t best = UINT64_MAX;
    if (!table) return 0;
    for (int i = 0; i < PASSES; i++) {
        fill(table);
        uint64_t start = ph_thread_cpu_ns();
        used += pass(table);
        uint64_t spent = ph_thread_cpu_ns() - start;
        if (spent < best) best = spent;
    }
    free(table);
    return best;
}
