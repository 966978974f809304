/* time/host_model.h - host time by the place in the program where it passes: recorded, and replayed
 * (time/host_model.c).
 *
 * Rule: every function here is called with ph_lock held, but for those that say otherwise. */
#ifndef PH_HOSTSITE_H
#define PH_HOSTSITE_H
#include "base/host_calls.h"
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

/* model: maps RUN_DIR/host.tbl; dies with one line when it cannot */
void ph_sites_map(void);
/* from here on ph_site_passed keeps what it is told */
void ph_sites_record(void);
bool ph_sites_recording(void);
/* the job's CPU time before this call; moves the history on */
void ph_site_passed(enum ph_call call, uint64_t spent_ns);
/* what the table says of it; moves the history on, counts */
uint64_t ph_site_time(enum ph_call call);
/* only moves the history on: a thread's first call has no time before it */
void ph_site_enter(enum ph_call call);
/* false: the time before such a call belongs to the next one that counts */
bool ph_site_counts(enum ph_call call);
void ph_sites_send_at_exit(void);         /* takes no lock */
void ph_sites_pack(struct ph_pack *pack); /* the array "sites" of a HOST message; takes ph_lock */
#endif
