/* time/time_outs.h - time-outs of PyTorch's watchdogs in simulated time (time/time_outs.c). */
#ifndef PH_TIME_OUTS_H
#define PH_TIME_OUTS_H
#include <stdbool.h>

#define PH_HANG_FILE "hangs" /* in RUN_DIR; the hub makes it */

bool ph_job_hangs(void);
/* Of the calling watchdog: it begins to look at all of its work; one look got the truth, or "not
 * ready" whatever the truth is. */
void ph_watchdog_round_begins(void);
void ph_watchdog_was_told(bool truth);
#endif
