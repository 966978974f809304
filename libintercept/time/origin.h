/* time/origin.h - the moment of real time that simulated time 0 is shown as (time/origin.c). */
#ifndef PH_ORIGIN_H
#define PH_ORIGIN_H
#include <stdint.h>

/* The process begins to use CUDA. Ends it with one line when RUN_DIR/origin cannot be used. */
void ph_origin_join(void);
/* Nanoseconds since the epoch, a whole second; for a process that has joined. Equal in all
 * processes that have used CUDA at one time. */
int64_t ph_origin_ns(void);
#endif
