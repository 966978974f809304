/* measure.h - shared by the measuring files: CUPTI's records, the sample store, host costs.
 *
 * Why it exists: wrappers of kernels, copies and streams only need leader.h. cupti.c, measure.c,
 * samples.c, host_costs.c and the library wrappers (blas.c, dnn.c) also need this. */
#ifndef PH_MEASURE_H
#define PH_MEASURE_H
#include "work/signature.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- cupti.c: one reader of NVIDIA's activity records ---- */
/* a finished kernel, copy or fill; times of CUPTI's clock in nanoseconds */
struct ph_activity {
    uint64_t start, end;
    uint32_t correlation, stream; /* CUPTI's numbers */
};
/* "the call with this correlation number was made while `id` was pushed" */
struct ph_external {
    uint64_t id;
    uint32_t correlation;
};
struct ph_records {
    struct ph_activity *activity;
    struct ph_external *external;
    size_t activities, activity_room, externals, external_room;
    /* records that CUPTI had no room for; records without times, or with impossible ones */
    uint64_t dropped, implausible;
};
/* Loads and starts CUPTI, and checks with two fills that records come with their external ids.
 * Exits with one line if not. */
void ph_cupti_start(void);
void ph_cupti_observe(bool on); /* records are made only between on and off; it starts on */
/* work that this thread issues until ph_cupti_pop belongs to `id` */
void ph_cupti_push(uint64_t id);
void ph_cupti_pop(void);
/* external ids are missing: enables more records of calls; false: all are enabled already */
bool ph_cupti_escalate(void);
/* work on this stream belongs to no call, and may be reported as one record (gpu_load.c) */
void ph_cupti_filler(void *stream);
uint64_t ph_cupti_now(void); /* the clock of the records */
/* Appends every finished record to `records`. `all`: also those of unfinished work, which then
 * never become complete. */
void ph_cupti_flush(struct ph_records *records, bool all);

/* ---- samples.c: the durations of each signature ---- */
struct ph_measured {
    struct ph_measured *next;
    struct ph_signature signature;
    struct ph_pack context; /* as LOOKUP's */
    bool timed;             /* the hub has answered how long it takes */
    bool retry;             /* its call was not seen, but the next one may be */
    bool sent;              /* a sample has been sent to the hub */
    /* its first sample; 0: none yet. Sent only if it was asked for, or no other followed */
    uint64_t first_ns;
    uint64_t *later;
    uint32_t laters, room;
};
/* created if it is new, with this thread's operator */
struct ph_measured *ph_measured_find(const struct ph_signature *signature);
struct ph_call_slot {                       /* one observed call */
    uint64_t token, called_ns, returned_ns; /* host times of CUPTI's clock */
    struct ph_measured *what;
    /* wanted: its duration is not known, so its sample is sent at once */
    bool ended, failed, wanted, clipped;
    uint32_t activities, stream;
    uint64_t first_start, last_end, busy_ns, overlap_ns;
};
/* Turns `records` into samples of those of the `count` slots that have ended. Records of the other
 * slots stay in `records`. `idle`: no work was unfinished, so a call without a record did no work.
 * A finished slot gets the token 0. True when external ids are missing: a call that was waited for
 * has no work, and some work since then belongs to no call. */
bool ph_samples_settle(struct ph_records *records, struct ph_call_slot *slots, size_t count,
                       bool idle);
/* MEASURED: its first sample, which a rank waits for */
void ph_samples_send_first(struct ph_measured *what);
/* MEASURED: the later samples; with `all` also first samples that no other followed */
void ph_samples_send(bool all);
uint64_t ph_samples_kept(void); /* later samples that have not been sent */
/* "latency" and "gap" of the HOST message: two pairs of a map */
void ph_samples_pack_host(struct ph_pack *map);
/* observed calls whose records were given up */
void ph_samples_count_lost(uint64_t calls);
void ph_samples_debug(void); /* prints counts on stderr */
void ph_samples_reset(void); /* in a forked child */

/* ---- host_costs.c ---- */
/* A call of a real library, with its cost for the calling thread if CUPTI is not loaded (CUPTI
 * makes every call slower, with or without records): status = PH_REAL_TIMED(PH_CALL_RECORD,
 * PH_REAL(cudaEventRecord)(event, stream)); */
#define PH_REAL_TIMED(class, call)                     \
    (__extension__({                                   \
        uint64_t started_ = ph_cost_start(class);      \
        __auto_type result_ = (call);                  \
        if (started_) ph_cost_stop((class), started_); \
        result_;                                       \
    }))
uint64_t ph_cost_start(enum ph_call class); /* 0: costs are not recorded now */
void ph_cost_stop(enum ph_call class, uint64_t started);
void ph_cost_record(void);               /* from now on, for good */
void ph_cost_pack(struct ph_pack *pack); /* [[class, count, mean_ns, median_ns], ...] */
/* a sample of fixed size of a stream of numbers; equal streams give equal samples */
struct ph_distribution {
    uint64_t count;
    uint32_t kept[4096];
};
void ph_distribution_add(struct ph_distribution *distribution, uint64_t value);
/* The median, and the mean of the values up to ten times the median: larger ones are waits for a
 * full queue, page faults, or the scheduler. */
void ph_distribution_read(const struct ph_distribution *distribution, uint64_t *mean,
                          uint64_t *median);

/* ---- measure.c ---- */
/* this thread is in an observed call: calls that it makes now are part of that one */
bool ph_lead_inside(void);
/* instead of ph_lead_end when the real call failed: nothing ran */
void ph_lead_cancel(uint64_t token);
void ph_lead_stream_gone(void *real_stream); /* before it is destroyed */
#endif
