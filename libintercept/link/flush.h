/* link/flush.h - the hub has every message of this process before it ends (link/flush.c). */
#ifndef PH_FLUSH_H
#define PH_FLUSH_H

/* Waits until the hub has handled everything that was sent so far. Warns that `what` may be missing
 * when it does not answer. */
void ph_flush(const char *what);
/* From now on exit() flushes, after what is registered with atexit() later. */
void ph_flush_at_exit(void);
#endif
