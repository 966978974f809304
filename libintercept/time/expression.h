/* time/expression.h - max-plus expressions over vertices, and what this process knows about the
 * times of the vertices. The caller of each function holds ph_lock. */
#ifndef PH_EXPRESSION_H
#define PH_EXPRESSION_H
#include "base/msgpack.h"
#include "time/runs.h"
#include <stdbool.h>
#include <stdint.h>

#define PH_UNKNOWN UINT64_MAX

/* ---- time expressions: max-plus expressions over vertices (docs/wire-protocol.md) ---- */
enum { PH_EXPR_MAX = 8 };
struct ph_term {
    uint64_t vertex;
    /* contention: how much longer the work takes when communication overlaps all of it */
    int64_t lag, work, contention;
    ph_run_id run; /* the kernels that `work` and `contention` are sums of */
};
struct ph_expr {
    int count;
    struct ph_term term[PH_EXPR_MAX];
};

void ph_expressions_start(void); /* the process joins the run */

struct ph_bound { /* what is known about the time of a vertex */
    uint64_t vertex, upper, lower;
    /* As `lower`, but its value depends on when the hub was asked. So it may save requests, but
     * must not decide a result. */
    uint64_t floor;
    uint64_t ceiling; /* to `upper` what `floor` is to `lower` */
    /* The previous communication, or name, of the same stream, reached before this vertex. 0: none.
     */
    uint64_t before;
    /* The communicator that it is an end on, as given to ph_communicated. 0: none */
    uint64_t comm;
    bool told;    /* The hub has told its time, which is the ceiling. */
    bool aborted; /* It ended with its communicator, which only this process knows. */
};
struct ph_bound *ph_bound(uint64_t vertex); /* NULL: the vertex is too old */
uint64_t ph_vertex_new(uint64_t lower, uint64_t upper);
void ph_vertex_known(uint64_t vertex, uint64_t time);
void ph_expr_prune(struct ph_expr *expr, uint64_t time);
void ph_expr_pack(struct ph_pack *pack, const struct ph_expr *expr);
uint64_t ph_expr_lower(const struct ph_expr *expr);
uint64_t ph_expr_floor(const struct ph_expr *expr); /* not below ph_expr_lower */
uint64_t ph_expr_upper(const struct ph_expr *expr); /* PH_UNKNOWN when there is no upper bound */
/* Not above ph_expr_upper. It may save requests, but must not decide a result. */
uint64_t ph_expr_ceiling(const struct ph_expr *expr);
/* PH_UNKNOWN when other ranks decide it */
uint64_t ph_expr_exact(const struct ph_expr *expr, uint64_t now);
/* If the time is known here, replaces the terms by one: that time, relative to the origin. */
void ph_expr_settle(struct ph_expr *expr);
void ph_expr_merge(struct ph_expr *expr, const struct ph_expr *other);
/* As ph_expr_merge, and correct however much communication stretches the work. */
void ph_expr_merge_all(struct ph_expr *expr, const struct ph_expr *other);
void ph_expr_add(struct ph_expr *expr, struct ph_term term);
/* adds a kernel */
void ph_expr_run(struct ph_expr *expr, int64_t work, int64_t contention);
/* Makes the hub keep the expression's time for as long as it can be named. Communication that
 * overlaps its work is known only for as long as somebody needs it. */
void ph_expr_keep(struct ph_expr *expr);
/* Names an expression that communication may stretch noticeably, so that later ones need not repeat
 * its kernels. `before`: the stream's last such vertex; returns the last one now. */
uint64_t ph_expr_cut(struct ph_expr *expr, uint64_t before);
/* replaces the expression by one new vertex, which the next message defines */
uint64_t ph_expr_name(struct ph_expr *expr);
/* what a vertex is a name for; NULL: it is no name, or an old one */
const struct ph_expr *ph_named(uint64_t vertex);
/* whether waiting for `event` adds a wait for communication */
bool ph_expr_waits_for_more(const struct ph_expr *expr, const struct ph_expr *event);
/* records that the expression is reached no earlier than `floor` */
void ph_expr_not_before(const struct ph_expr *expr, uint64_t now, uint64_t floor);
/* the same of a vertex; `final`: it is reached then */
void ph_vertex_not_before(uint64_t vertex, uint64_t floor, bool final);
void ph_extra_stall(int device, const struct ph_expr *before, const struct ph_expr *after);
/* beside: the message launches communication that compute on the same GPU overlaps, but for the
 * last `waited` ns */
void ph_extra_pack(struct ph_pack *body, bool beside, uint64_t waited);
/* `vertex` is the end of communication that was just issued on communicator `comm` (not 0).
 * `before` is the end of the previous communication on its stream. */
void ph_communicated(uint64_t vertex, uint64_t before, uint64_t comm);
/* Ends the communication of `comm` that is not known to be over by `now`. The caller then drops it
 * from all expressions. */
void ph_communication_aborted(uint64_t comm, uint64_t now);
/* names the end of aborted communication by its time, because the hub waits for other ranks */
void ph_expr_drop_aborted(struct ph_expr *expr);
/* records that the vertex, and all communication before it on its stream, was reached by `upper` */
void ph_bound_above(struct ph_bound *bound, uint64_t upper);
/* records that every term of the expression was reached by `time` */
void ph_expr_reached(const struct ph_expr *expr, uint64_t time);
/* records that everything issued so far was reached by `now` */
void ph_all_over(uint64_t now);
/* the lowest vertex in the expression, or `otherwise` if that is lower */
uint64_t ph_expr_oldest(const struct ph_expr *expr, uint64_t otherwise);
void ph_extra_keep(uint64_t vertex);
#endif
