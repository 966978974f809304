/* timeline.h - what heads.c, hostclock.c and timeline.c share. All of it is guarded by ph_lock, which the caller holds. */
#ifndef PH_TIMELINE_H
#define PH_TIMELINE_H
#include "core.h"

#define PH_UNKNOWN UINT64_MAX

/* ---- hostclock.c --------------------------------------------------------------------------------------------------- */
extern struct ph_host {
    uint64_t node, time; /* the anchor */
    int64_t offset;      /* what passed since */
} ph_host;
uint64_t ph_clock(void);
void ph_clock_publish(void);
void ph_clock_advance(uint64_t cost_ns); /* by the caller's CPU time since its last call, and the call's cost */
void ph_clock_poll_failed(void); /* a member of the chain has asked and was told "not yet"; takes ph_lock itself */
bool ph_clock_stands_still(void); /* for half a second of real time, and not because it waits for the hub */
void ph_leave(void);      /* on the way out of a call: what the interceptor spent is not the job's; needs no lock */
bool ph_in_chain(void);   /* false for a thread that has only ever asked (NCCL's watchdog) */

/* ---- heads.c --------------------------------------------------------------------------------------------------------- */
struct ph_bound { /* what is known of a node's time */
    uint64_t node, upper, lower;
    uint64_t before; /* communication that ended before this did: the one launched before on its stream; 0: none */
};
struct ph_bound *ph_bound(uint64_t node); /* NULL: too long ago */
uint64_t ph_node_new(uint64_t lower, uint64_t upper);
void ph_node_known(uint64_t node, uint64_t time);
void ph_head_prune(struct ph_head *head, uint64_t time);
void ph_head_pack(struct ph_pack *pack, const struct ph_head *head);
uint64_t ph_head_lower(const struct ph_head *head);
uint64_t ph_head_upper(const struct ph_head *head);                /* PH_UNKNOWN when it has none */
uint64_t ph_head_exact(const struct ph_head *head, uint64_t now); /* PH_UNKNOWN when others decide it */
void ph_head_settle(struct ph_head *head); /* names the origin alone, if the time is known here: the same time for good */
void ph_head_merge(struct ph_head *head, const struct ph_head *other);
void ph_head_add_host(struct ph_head *head, int64_t latency);
bool ph_head_waits_for_more(const struct ph_head *head, const struct ph_head *event); /* for communication, that is */
void ph_head_not_before(const struct ph_head *head, uint64_t now, uint64_t floor); /* it is reached no earlier than `floor` */
void ph_extra_stall(int device, const struct ph_head *before, const struct ph_head *after);
void ph_extra_pack(struct ph_pack *body, bool beside); /* beside: communication that compute runs beside */
/* `node` is the end of communication that was just issued, `before` that of the one before on its stream. */
void ph_communicated(uint64_t node, uint64_t before);
void ph_bound_above(struct ph_bound *bound, uint64_t upper); /* it, and all that ended before it, were reached by `upper` */
void ph_all_over(uint64_t now);                              /* everything issued so far has been reached by `now` */
uint64_t ph_head_oldest(const struct ph_head *head, uint64_t otherwise); /* the lowest node that it names */
void ph_extra_keep(uint64_t node);
void ph_heads_reset(void);

/* ---- observer.c -------------------------------------------------------------------------------------------------------- */
void ph_observer_looks(void);             /* around each look of a thread that is not in the chain */
void ph_observer_looked(bool over);
void ph_observers_catch_up(uint64_t waited_ns); /* after a wait of the host that took so long in virtual time; takes no lock */

/* ---- timeline.c ------------------------------------------------------------------------------------------------------ */
void ph_streams_reset(void);
#endif
