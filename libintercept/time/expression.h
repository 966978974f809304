/* time/expression.h - max-plus expressions over nodes, and what this process knows of the nodes.
 * All of it is guarded by ph_lock, which the caller holds. */
#ifndef PH_EXPRESSION_H
#define PH_EXPRESSION_H
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

#define PH_UNKNOWN UINT64_MAX

/* ---- heads: max-plus expressions over nodes (docs/wire-protocol.md) ---- */
enum { PH_HEAD_MAX = 8 };
struct ph_entry {
    uint64_t node;
    /* drag: what the work takes longer when communication runs beside all of it */
    int64_t lag, work, drag;
};
struct ph_head {
    int count;
    struct ph_entry entry[PH_HEAD_MAX];
};
_Static_assert(sizeof(struct ph_entry) == 32, "trace_log.py");

void ph_expressions_start(void); /* the process joins the run */

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
#endif
