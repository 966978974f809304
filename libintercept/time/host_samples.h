/* time/host_samples.h - what this run's ranks measure of call sites (time/host_samples.c).
 *
 * Rule: every function here is called with ph_lock held. */
#ifndef PH_HOST_SAMPLES_H
#define PH_HOST_SAMPLES_H
#include <stdbool.h>
#include <stdint.h>

/* Maps RUN_DIR/host.smp; without it the process ends with one line. `speed_permille`: the factor on
 * CPU time until call sites of the table have shown a better one. */
void ph_host_samples_map(uint64_t speed_permille);

struct ph_host_sample {
    uint64_t key, ns;
    uint64_t table_ns;   /* what the table says of the call site; 0: nothing */
    bool recorded;       /* it says so by a record, not by an earlier run here */
    uint32_t occurrence; /* of the call site in this process, from 0 */
};
/* Adds a sample. Returns whether the time to charge is a measured one: *charge_ns is the table's
 * unless it says nothing, or the sample lies far above. 0: nothing is known. */
bool ph_host_samples_add(const struct ph_host_sample *sample, uint64_t *charge_ns);
#endif
