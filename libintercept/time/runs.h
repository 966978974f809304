/* time/runs.h - of which kernels the work of a term consists, in order. ph_lock is held. */
#ifndef PH_RUNS_H
#define PH_RUNS_H
#include "base/msgpack.h"
#include <stdint.h>

/* The newest kernel of a term's work. 0: it has no work, or its kernels are not known. */
typedef uint64_t ph_run_id;

/* a kernel after `before` */
ph_run_id ph_run_after(ph_run_id before, int64_t work, int64_t contention);
ph_run_id ph_run_before(ph_run_id run); /* without its newest kernel */
/* Packs `work` and `contention`, the sums over the newest kernels up to `run`, as an array of pairs
 * in order. */
void ph_runs_pack(struct ph_pack *pack, ph_run_id run, int64_t work, int64_t contention);
#endif
