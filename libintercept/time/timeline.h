/* timeline.h - what time/expression.c, time/host_clock.c and timeline.c share. All of it is guarded
 * by ph_lock, which the caller holds. */
#ifndef PH_TIMELINE_H
#define PH_TIMELINE_H
#include "base/core.h"

#define PH_UNKNOWN UINT64_MAX

/* ---- time/host_clock.c ---- */
extern struct ph_host {
    uint64_t node, time;             /* the anchor; if `open`, time is a lower bound */
    int64_t offset;                  /* what passed since */
    uint64_t ahead;                  /* how far the clock is known to be beyond that */
    uint64_t known_node, known_time; /* the last anchor that the hub has told */
    /* time/launch_queue.c: the host waits in a launch for what the hub alone knows. It is where
     * `held` is reached, and what passed since offset was held_at; with no entries in it, at the
     * anchor. */
    bool open;
    struct ph_head held;
    int64_t held_at, mark_at, mark;
    /* reached: works of mark_stream that ended before; shown: node of `held` for the trace */
    uint64_t mark_stream, reached, shown;
} ph_host;
uint64_t ph_clock(void); /* a lower bound while ph_host.open; else exact */
void ph_clock_publish(void);
/* by the job's time since the caller's last call, and the call's cost */
void ph_clock_advance(enum ph_call call);
/* a member of the chain has asked and was told "not yet"; takes ph_lock itself */
void ph_clock_poll_failed(void);
/* for half a second of real time, and not because it waits for the hub */
bool ph_clock_stands_still(void);
/* host time comes from a record: what the job sees must not depend on real time */
bool ph_clock_repeats(void);
/* on the way out of a call: what the interceptor spent is not the job's; needs no lock */
void ph_leave(void);
bool ph_in_chain(void); /* false for a thread that has only ever asked (NCCL's watchdog) */

/* ---- time/launch_queue.c ---- */
void ph_host_anchor(uint64_t node, uint64_t time); /* the hub has told where the host is */
/* the host waited until `time`, if that is later */
void ph_host_reach(uint64_t time);
void ph_host_moment(uint64_t *node, int64_t *offset);
uint64_t ph_host_oldest(uint64_t otherwise); /* the lowest node that the host's clock names */
/* 1: it is over by now, 0: it is not, -1: not known here */
int ph_host_compare(const struct ph_place *place);
/* Before a call puts `works` (struct ph_time) on the stream: the host waits until there is room in
 * its queue. After: they are in it. */
void ph_queue_wait_locked(struct ph_stream *stream, uint32_t works);
void ph_queue_push_locked(struct ph_stream *stream, uint32_t works, uint64_t duration_ns,
                          uint64_t drag_ns);
/* as ph_head_add_host, where the stream's work goes on */
void ph_queue_add_host(struct ph_stream *stream, int64_t latency);
/* work was put on it */
void ph_queue_moved(struct ph_stream *stream, uint64_t duration_ns, uint64_t gap_ns);
void ph_queue_free(struct ph_stream *stream);
struct ph_place ph_queue_place(const struct ph_stream *stream);
/* it waits for what has that place */
void ph_queue_after(struct ph_stream *stream, const struct ph_place *place);
/* as ph_head_oldest, of its works unfinished at `now` */
uint64_t ph_queue_oldest(struct ph_stream *stream, uint64_t now, uint64_t oldest);

/* ---- time/expression.c ---- */
struct ph_bound { /* what is known of a node's time */
    uint64_t node, upper, lower;
    /* as lower, but how high depends on when the hub was asked: good for saving questions, for
     * nothing that shows */
    uint64_t floor;
    /* communication that ended before this did: the one launched before on its stream; 0: none */
    uint64_t before;
};
struct ph_bound *ph_bound(uint64_t node); /* NULL: too long ago */
uint64_t ph_node_new(uint64_t lower, uint64_t upper);
void ph_node_known(uint64_t node, uint64_t time);
void ph_head_prune(struct ph_head *head, uint64_t time);
void ph_head_pack(struct ph_pack *pack, const struct ph_head *head);
uint64_t ph_head_lower(const struct ph_head *head);
uint64_t ph_head_floor(const struct ph_head *head); /* at least ph_head_lower */
uint64_t ph_head_upper(const struct ph_head *head); /* PH_UNKNOWN when it has none */
/* PH_UNKNOWN when others decide it */
uint64_t ph_head_exact(const struct ph_head *head, uint64_t now);
/* names the origin alone, if the time is known here: the same time for good */
void ph_head_settle(struct ph_head *head);
void ph_head_merge(struct ph_head *head, const struct ph_head *other);
/* the same, however much work is stretched */
void ph_head_merge_all(struct ph_head *head, const struct ph_head *other);
void ph_head_add(struct ph_head *head, struct ph_entry entry);
/* makes it one new node, which the next message defines */
uint64_t ph_head_name(struct ph_head *head);
void ph_head_add_host(struct ph_head *head, int64_t latency); /* time/launch_queue.c */
/* for communication, that is */
bool ph_head_waits_for_more(const struct ph_head *head, const struct ph_head *event);
/* it is reached no earlier than `floor` */
void ph_head_not_before(const struct ph_head *head, uint64_t now, uint64_t floor);
void ph_extra_stall(int device, const struct ph_head *before, const struct ph_head *after);
/* beside: communication that compute runs beside */
void ph_extra_pack(struct ph_pack *body, bool beside);
/* `node` is the end of communication that was just issued, `before` that of the one before on its
 * stream. */
void ph_communicated(uint64_t node, uint64_t before);
/* it, and all that ended before it, were reached by `upper` */
void ph_bound_above(struct ph_bound *bound, uint64_t upper);
/* every entry of it was, by `time` */
void ph_head_reached(const struct ph_head *head, uint64_t time);
/* everything issued so far has been reached by `now` */
void ph_all_over(uint64_t now);
/* the lowest node that it names */
uint64_t ph_head_oldest(const struct ph_head *head, uint64_t otherwise);
void ph_extra_keep(uint64_t node);
void ph_heads_reset(void);

/* ---- power.c ---- */
/* how long a kernel takes as the GPU stands */
uint64_t ph_power_run_locked(int device, uint64_t duration_ns, enum ph_bound_by bound_by);
/* the host has waited for its GPU until `now` */
void ph_power_waited_locked(uint64_t now);
void ph_power_reset(void);

/* ---- threads.c ---- */
/* a thread, and how often it has gone to sleep so far */
struct ph_watcher {
    int tid;
    uint64_t switches;
};
bool ph_thread_sleeps(int tid); /* false as well for one that is gone */
/* waits for `other` to end; false where the kernel does not tell */
bool ph_thread_joins(int tid, int other);
uint64_t ph_thread_switches(int tid);
int ph_watchers(struct ph_watcher *found, int most); /* NCCL's watchdogs in this process */

/* ---- time/watchdog.c ---- */
/* Around each look of a thread that is not in the chain: how it is to be answered. */
enum ph_look {
    PH_LOOK_AT_ONCE, /* by what is known so far */
    PH_LOOK_EXACTLY, /* by the order of simulated times */
    PH_LOOK_LATER    /* not now: it shall look again */
};
enum ph_look ph_observer_looks(const void *work); /* work: what it looks at */
void ph_observer_looked(bool over);
/* where the chain is about to communicate: it takes no lock */
void ph_observers_due(void);
/* after a wait of the host that took so long in virtual time; takes no lock */
void ph_observers_catch_up(uint64_t waited_ns);

/* ---- timeline.c ---- */
void ph_streams_reset(void);
bool ph_stream_is_legacy(const struct ph_stream *stream);
/* the legacy stream and blocking streams wait for each other */
void ph_stream_order_locked(struct ph_stream *stream);
/* asks where an open clock is; lets go of ph_lock meanwhile */
void ph_host_settle_locked(void);
#endif
