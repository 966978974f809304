/* time/expression.h - max-plus expressions over vertices, and what this process knows of
 * the vertices.  * All of it is guarded by ph_lock, which the caller holds. */
#ifndef PH_EXPRESSION_H
#define PH_EXPRESSION_H
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

#define PH_UNKNOWN UINT64_MAX

/* ---- expressions: max-plus expressions over vertices (docs/wire-protocol.md) ---- */
enum { PH_EXPR_MAX = 8 };
struct ph_term {
    uint64_t vertex;
    /* contention: what the work takes longer when communication runs beside all of it */
    int64_t lag, work, contention;
};
struct ph_expr {
    int count;
    struct ph_term term[PH_EXPR_MAX];
};
_Static_assert(sizeof(struct ph_term) == 32, "trace_log.py");

void ph_expressions_start(void); /* the process joins the run */

struct ph_bound { /* what is known of a vertex's time */
    uint64_t vertex, upper, lower;
    /* as lower, but how high depends on when the hub was asked: good for saving questions, for
     * nothing that shows */
    uint64_t floor;
    /* communication that ended before this did: the one launched before on its stream; 0: none */
    uint64_t before;
};
struct ph_bound *ph_bound(uint64_t vertex); /* NULL: too long ago */
uint64_t ph_vertex_new(uint64_t lower, uint64_t upper);
void ph_vertex_known(uint64_t vertex, uint64_t time);
void ph_expr_prune(struct ph_expr *expr, uint64_t time);
void ph_expr_pack(struct ph_pack *pack, const struct ph_expr *expr);
uint64_t ph_expr_lower(const struct ph_expr *expr);
uint64_t ph_expr_floor(const struct ph_expr *expr); /* at least ph_expr_lower */
uint64_t ph_expr_upper(const struct ph_expr *expr); /* PH_UNKNOWN when it has none */
/* PH_UNKNOWN when others decide it */
uint64_t ph_expr_exact(const struct ph_expr *expr, uint64_t now);
/* names the origin alone, if the time is known here: the same time for good */
void ph_expr_settle(struct ph_expr *expr);
void ph_expr_merge(struct ph_expr *expr, const struct ph_expr *other);
/* the same, however much work is stretched */
void ph_expr_merge_all(struct ph_expr *expr, const struct ph_expr *other);
void ph_expr_add(struct ph_expr *expr, struct ph_term term);
/* makes it one new vertex, which the next message defines */
uint64_t ph_expr_name(struct ph_expr *expr);
/* for communication, that is */
bool ph_expr_waits_for_more(const struct ph_expr *expr, const struct ph_expr *event);
/* it is reached no earlier than `floor` */
void ph_expr_not_before(const struct ph_expr *expr, uint64_t now, uint64_t floor);
void ph_extra_stall(int device, const struct ph_expr *before, const struct ph_expr *after);
/* beside: communication that compute runs beside */
void ph_extra_pack(struct ph_pack *body, bool beside);
/* `vertex` is the end of communication that was just issued, `before` that of the one before on its
 * stream. */
void ph_communicated(uint64_t vertex, uint64_t before);
/* it, and all that ended before it, were reached by `upper` */
void ph_bound_above(struct ph_bound *bound, uint64_t upper);
/* every term of it was, by `time` */
void ph_expr_reached(const struct ph_expr *expr, uint64_t time);
/* everything issued so far has been reached by `now` */
void ph_all_over(uint64_t now);
/* the lowest vertex that it names */
uint64_t ph_expr_oldest(const struct ph_expr *expr, uint64_t otherwise);
void ph_extra_keep(uint64_t vertex);
#endif
