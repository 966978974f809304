/* time/host_model.h - host time by call site: recorded, and charged from a record
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
void ph_host_model_map(void);
/* from here on ph_call_site_passed keeps what it is told */
void ph_host_model_record(void);
bool ph_host_model_recording(void);
/* the job's CPU time before this call; moves the history on */
void ph_call_site_passed(enum ph_call call, uint64_t spent_ns);
/* what the table says of it; moves the history on, counts */
uint64_t ph_call_site_time(enum ph_call call);
/* only moves the history on: a thread's first call has no time before it */
void ph_call_site_enter(enum ph_call call);
/* false: the time before such a call belongs to the next one that counts */
bool ph_call_site_counts(enum ph_call call);
void ph_host_model_send_at_exit(void); /* takes no lock */
void ph_host_model_pack(
    struct ph_pack *pack); /* the array "sites" of a HOST message; takes ph_lock */
#endif
