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
    PH_LOOK_LATER,   /* answer "not ready"; the thread polls again later */
    PH_LOOK_IF_LONG  /* the same, unless the host waits for long in simulated time */
};
/* put_off_ns: belongs to what the thread polls. The real time since which its polls have been
 * answered "not ready" alone; 0: they are not. */
enum ph_look ph_watchdog_looks(_Atomic uint64_t *put_off_ns);
/* not_before: the polled work is not over before this time. 0: nothing is known. */
void ph_watchdog_looked(bool over, uint64_t not_before);
/* Whether a host that waits from `now` until `until` or longer will open a window when it goes on.
 * Then the watchdogs may look before that. The calling thread's polls were answered by that. */
bool ph_watchdog_wait_is_long(uint64_t now, uint64_t until);

struct ph_nap;
/* The sleep of the calling thread, if it is a watchdog whose rounds follow simulated time; else
 * NULL. */
struct ph_nap *ph_watchdog_nap(void);

enum ph_watchdog {
    PH_WATCHDOG_NAMED, /* of c10d::ProcessGroupNCCL */
    PH_WATCHDOG_NCCL2, /* of c10d::nccl2::ProcessGroupNCCL, from PyTorch 2.15 on */
    PH_WATCHDOGS
};
/* The calling thread's capture mode becomes cudaStreamCaptureModeThreadLocal, or another one. */
void ph_watchdog_captures_locally(bool begins);
void ph_watchdog_asks_for_errors(void); /* the calling thread asks about a communicator */
/* Called where the chain is about to communicate: for the named ones in the launch, for nccl2's at
 * the event that precedes it, because PyTorch's lock on NCCL stops them in the launch. Takes no
 * lock. */
void ph_watchdogs_due(enum ph_watchdog kind);
/* A communicator is made, which watchdogs will look after. */
void ph_watchdogs_expected(void);
/* A collective that launches nothing: PyTorch's watchdog holds its tensors like those of others. */
void ph_watchdogs_given_unlaunched(void);
/* Called after the host has waited for `waited_ns` of virtual time. Takes no lock. */
void ph_watchdogs_catch_up(uint64_t waited_ns);
#endif
