/* time/naps.h - the sleep of PyTorch's watchdogs between two rounds of polls (time/naps.c). */
#ifndef PH_NAPS_H
#define PH_NAPS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ph_nap {                 /* the sleep of one watchdog; zeros at first */
    _Atomic uint64_t begun;     /* how often it has gone to sleep */
    _Atomic bool asleep, woken; /* woken: it is to do a round now */
    pthread_cond_t *bed;        /* what it sleeps on; only while `asleep` */
};
/* Wakes it, if it sleeps. A wake may be lost, so the caller repeats it. */
void ph_nap_end(struct ph_nap *nap);
/* How far the calling thread's own clocks are ahead, because it was woken. */
int64_t ph_nap_ahead(void);
#endif
