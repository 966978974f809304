/* measure.h - what the measuring files share: CUPTI's records, the sample store, what host calls
 * cost.
 *
 * Why it exists: leader.h is all that a wrapper of kernels, copies or streams needs; cupti.c,
 * measure.c, samples.c, hostcosts.c and the library wrappers (blas.c, dnn.c) need these as well. */
#ifndef PH_MEASURE_H
#define PH_MEASURE_H
#include "base/host_calls.h"
#include "base/msgpack.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- cupti.c: one reader of NVIDIA's activity records ---- */
/* a kernel, copy or fill that the GPU has done; times of CUPTI's clock, nanoseconds */
struct ph_work {
    uint64_t start, end;
    uint32_t correlation, stream; /* CUPTI's numbers */
};
/* "what this correlation number stands for was issued while `id` was pushed" */
struct ph_external {
    uint64_t id;
    uint32_t correlation;
};
struct ph_records {
    struct ph_work *work;
    struct ph_external *external;
    size_t works, work_room, externals, external_room;
    /* records that CUPTI had no room for; that had no times, or impossible ones */
    uint64_t dropped, implausible;
};
/* Loads CUPTI, starts it and proves with two fills that records come, with their external ids. Dies
 * with one line. */
void ph_cupti_start(void);
void ph_cupti_observe(bool on); /* records are made only between on and off; starting is on */
/* what this thread issues from here to ph_cupti_pop is work for `id` */
void ph_cupti_push(uint64_t id);
void ph_cupti_pop(void);
/* external ids are missing: from here on with more records of calls; false: with all already */
bool ph_cupti_escalate(void);
/* what runs on it is nobody's, and may be told of as a whole (heat.c) */
void ph_cupti_filler(void *stream);
uint64_t ph_cupti_now(void); /* the clock that records' times are given in */
/* Appends every finished record to `records`; `all`: also those of unfinished work, which then
 * never come complete. */
void ph_cupti_flush(struct ph_records *records, bool all);

/* ---- samples.c: what the durations of each signature were ---- */
struct ph_measured {
    uint64_t key;
    struct ph_measured *next;
    struct ph_pack signature, context; /* [kind, fields]; LOOKUP's context */
    bool timed;                        /* the hub has told how long it takes */
    bool again;                        /* its call was not seen, but the next one may be */
    bool sent;                         /* a sample of it has gone to the hub */
    /* its first sample, 0: none yet. Sent only where it was asked for, or nothing followed */
    uint64_t first_ns;
    uint64_t *later;
    uint32_t laters, room;
};
/* made if it is new, with this thread's operator */
struct ph_measured *ph_measured_find(uint64_t key, const struct ph_pack *signature);
struct ph_call_slot {                       /* one observed call */
    uint64_t token, called_ns, returned_ns; /* host times of CUPTI's clock */
    struct ph_measured *what;
    /* wanted: nobody knows its duration, so its sample goes out at once */
    bool ended, failed, wanted, clipped;
    uint32_t works, stream;
    uint64_t first_start, last_end, busy_ns, overlap_ns;
};
/* Turns `records` into samples of the `count` slots that have ended, and leaves in `records` what
 * belongs to slots that have not. `idle`: no work was unfinished, so what has no record never had
 * any. A slot that is done gets the token 0. True when external ids are missing: a call that was
 * waited for has no work, and work that was done meanwhile is nobody's. */
bool ph_samples_settle(struct ph_records *records, struct ph_call_slot *slots, size_t count,
                       bool idle);
/* MEASURED: its first sample, which somebody waits for */
void ph_samples_send_first(struct ph_measured *what);
/* MEASURED: the later ones; with `all` also first ones that nothing followed */
void ph_samples_send(bool all);
uint64_t ph_samples_kept(void); /* later ones that have not been sent */
/* "latency" and "gap" of the HOST message: two pairs of a map */
void ph_samples_pack_host(struct ph_pack *map);
/* that were observed and whose record was given up */
void ph_samples_count_lost(uint64_t calls);
void ph_samples_debug(void); /* counts, on stderr */
void ph_samples_reset(void); /* in a forked child */

/* ---- hostcosts.c ---- */
/* A call of a real library, and what it cost the calling thread, where CUPTI is not loaded (it
 * makes every call slower, records or not): status = PH_REAL_TIMED(PH_CALL_RECORD,
 * PH_REAL(cudaEventRecord)(event, stream)); */
#define PH_REAL_TIMED(class, call)                     \
    (__extension__({                                   \
        uint64_t started_ = ph_cost_start(class);      \
        __auto_type result_ = (call);                  \
        if (started_) ph_cost_stop((class), started_); \
        result_;                                       \
    }))
uint64_t ph_cost_start(enum ph_call class); /* 0: not now */
void ph_cost_stop(enum ph_call class, uint64_t started);
void ph_cost_record(void);               /* from here on, for good */
void ph_cost_pack(struct ph_pack *pack); /* [[class, count, mean_ns, median_ns], ...] */
/* of a stream of numbers: a sample of fixed size, the same for the same stream */
struct ph_distribution {
    uint64_t count;
    uint32_t kept[4096];
};
void ph_distribution_add(struct ph_distribution *distribution, uint64_t value);
/* Mean without what is beyond ten times the median (waits for a full queue, page faults, the
 * scheduler), and the median. */
void ph_distribution_read(const struct ph_distribution *distribution, uint64_t *mean,
                          uint64_t *median);

/* ---- measure.c ---- */
/* this thread is in an observed call: what it calls now is part of that */
bool ph_lead_inside(void);
/* in place of ph_lead_end when the real call failed: nothing ran */
void ph_lead_cancel(uint64_t token);
void ph_lead_stream_gone(void *real_stream); /* before it is destroyed */
#endif
