/* time/host_model.h - host time by call site: recorded, or charged from a record
 * (time/host_model.c).
 *
 * Rule: every function here is called with ph_lock held, unless its comment says otherwise. */
#ifndef PH_HOST_MODEL_H
#define PH_HOST_MODEL_H
#include "base/host_calls.h"
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

/* For --host-time auto and model: maps RUN_DIR/host.tbl. Dies with one line when it cannot. */
void ph_host_model_map(void);
/* Whether this run measures the call sites that the table lacks. */
bool ph_host_model_measures(void);
/* from now on ph_call_site_passed records its times */
void ph_host_model_record(void);
bool ph_host_model_recording(void);
/* Takes the job's CPU time before this call. Appends the call site to the history. */
void ph_call_site_passed(enum ph_call call, uint64_t spent_ns);
/* The time that the table gives for this call site. Appends the call site to the history, and
 * counts the lookup. */
uint64_t ph_call_site_time(enum ph_call call);
/* The same, where the call site's CPU time is `spent_ns` this time: what the table lacks is charged
 * as measured. */
uint64_t ph_call_site_measured(enum ph_call call, uint64_t spent_ns, bool cold);
/* Only appends the call site to the history: a thread's first call has no time before it. */
void ph_call_site_enter(enum ph_call call);
/* false: the time before such a call is charged to the next call that counts */
bool ph_call_site_counts(enum ph_call call);
void ph_host_model_send_at_exit(void); /* needs no lock */
void ph_host_model_pack(
    /* packs the array "sites" of a HOST message; takes ph_lock itself */
    struct ph_pack *pack);
#endif
