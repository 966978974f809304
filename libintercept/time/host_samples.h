/* time/host_samples.h - what this run's ranks measure of call sites (time/host_samples.c).
 *
 * Rule: every function here is called with ph_lock held. */
#ifndef PH_HOST_SAMPLES_H
#define PH_HOST_SAMPLES_H
#include <stdbool.h>
#include <stdint.h>

/* Maps RUN_DIR/host.smp; without it the process ends with one line. */
void ph_host_samples_map(void);

/* A forked child has met no call site yet. */
void ph_host_samples_forget(void);

/* The bit of this process's rank, modulo 32; all bits where `RANK` is not set. */
uint32_t ph_host_rank_bit(void);

struct ph_host_sample {
    uint64_t key, ns;
    uint64_t table_ns;   /* what the table says of the call site; 0: nothing */
    uint32_t occurrence; /* of the call site in this process, from 0 */
    bool cold;           /* the thread has lately not run, so others have used the caches */
};
/* Adds a sample. Returns whether *charge_ns is the time to charge. It is not where there is no room
 * for the call site, or where this is its first sample and the table knows it. */
bool ph_host_samples_add(const struct ph_host_sample *sample, uint64_t *charge_ns);
#endif
