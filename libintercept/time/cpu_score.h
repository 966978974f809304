/* time/cpu_score.h - how fast this machine runs code like a framework's, as one number. */
#ifndef PH_CPU_SCORE_H
#define PH_CPU_SCORE_H
#include <stdint.h>

/* Thread CPU time of a fixed piece of work, nanoseconds; 0: no memory. Takes about 20 ms. */
uint64_t phantora_host_score(void);
#endif
