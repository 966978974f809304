/* time/cpu_score.h - how fast this machine runs code like a framework's, as one number. */
#ifndef PH_CPU_SCORE_H
#define PH_CPU_SCORE_H
#include <stdint.h>

/* Returns the thread CPU time of a fixed piece of work, in nanoseconds. Takes about 20 ms. 0: out
 * of memory. */
uint64_t phantora_host_score(void);
#endif
