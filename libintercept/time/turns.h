/* time/turns.h - what a rank does to files waits for its turn (time/turns.c). */
#ifndef PH_TURNS_H
#define PH_TURNS_H
#include <stdbool.h>
#include <stdint.h>

/* The process launches communication: from now on others may know what it has done. */
void ph_turn_communicates(void);
/* Whether others may know what happened at `real_ns` of CLOCK_REALTIME. */
bool ph_turn_known(int64_t real_ns);
/* Waits until no rank can act earlier in simulated time, if this run repeats. It does nothing in a
 * process that does not use CUDA, and in threads that launch no GPU work. */
void ph_turn_wait(void);
#endif
