/* time/watchdog.h - threads that only ever look, such as NCCL's watchdog (time/watchdog.c). */
#ifndef PH_WATCHDOG_H
#define PH_WATCHDOG_H
#include <stdbool.h>
#include <stdint.h>

/* Around each look of a thread that is not in the chain: how it is to be answered. */
enum ph_look {
    PH_LOOK_AT_ONCE, /* by what is known so far */
    PH_LOOK_EXACTLY, /* by the order of simulated times */
    PH_LOOK_LATER    /* not now: it shall look again */
};
enum ph_look ph_watchdog_looks(const void *work); /* work: what it looks at */
void ph_watchdog_looked(bool over);
/* where the chain is about to communicate: it takes no lock */
void ph_watchdogs_due(void);
/* after a wait of the host that took so long in virtual time; takes no lock */
void ph_watchdogs_catch_up(uint64_t waited_ns);
#endif
