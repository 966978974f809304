/* time/watchdog.h - threads that only poll, such as NCCL's watchdog (time/watchdog.c). */
#ifndef PH_WATCHDOG_H
#define PH_WATCHDOG_H
#include <stdbool.h>
#include <stdint.h>

/* How to answer a poll of a thread that is not in the chain. The two functions enclose each such
 * poll. */
enum ph_look {
    PH_LOOK_AT_ONCE, /* answer by what is known so far */
    PH_LOOK_EXACTLY, /* answer by the order of simulated times */
    PH_LOOK_LATER    /* answer "not ready"; the thread polls again later */
};
enum ph_look ph_watchdog_looks(const void *work); /* work: what the thread polls */
void ph_watchdog_looked(bool over);
/* Called where the chain is about to communicate. Takes no lock. */
void ph_watchdogs_due(void);
/* Called after the host has waited for `waited_ns` of virtual time. Takes no lock. */
void ph_watchdogs_catch_up(uint64_t waited_ns);
#endif
