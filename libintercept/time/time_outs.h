/* time/time_outs.h - time-outs of PyTorch's communication in simulated time (time/time_outs.c). */
#ifndef PH_TIME_OUTS_H
#define PH_TIME_OUTS_H
#include <stdbool.h>
#include <stdint.h>

#define PH_HANG_FILE "hangs" /* in RUN_DIR; the hub makes it while nothing in the job can go on */

bool ph_job_hangs(void);
/* Of the calling watchdog: it begins to look at all of its work; the work that it has looked at is
 * not over before that time. 0: nothing is known. UINT64_MAX: it is over, and the watchdog knows.
 */
void ph_time_out_round(void);
void ph_time_out_looked(uint64_t not_before);
#endif
