/* time/expression.c - time expressions: max-plus expressions over vertices, and what this process
 * knows about the times of the vertices.
 *
 * Why it exists: an expression is the maximum over its terms of t(vertex) + lag + work. Some
 * vertices have times that are known here: the process's origin (vertex 0) and its anchors, which
 * the hub has answered. Others only have bounds, `upper` and `lower`: the ends of collectives, and
 * named expressions.
 *
 * A term that can no longer decide the maximum is dropped. An operation never starts before the
 * host's clock, so a term known to lie at or before the clock cannot decide it.
 *
 * Rule: every function here is called with ph_lock held. */
#include "time/expression.h"
#include "base/fork.h"
#include "time/host_clock.h"
#include "time/untold.h"
#include <stddef.h>
#include <string.h>

enum {
    RING = 8192,
    EXPR_FULL = PH_EXPR_MAX - 2,
    LAUNCHES = 64,
    NAMES = 512,
    RECENT = 64,
    DEEPEST = 4,
    CHAIN = 64
};
/* what contention makes it worth to name an expression */
enum { CUT_NS = 10000 };

static uint64_t next_vertex = 1;
static struct ph_bound bounds[RING];
/* The last named expressions, by vertex: what is known of a name is known of its terms. */
static struct name {
    uint64_t vertex; /* 0: none */
    uint64_t order;
    struct ph_expr expr;
} names[NAMES];
static uint64_t name_count;
/* the lowest vertex that may still be named, if the next message is to say so; 0: it is not */
static uint64_t keep;
static struct ph_pack pending_nodes, pending_stalls; /* the map `extra` of the next message */
/* end vertices of communication launched since the device was last idle */
static uint64_t launches[LAUNCHES], launch_count;
static bool communicates; /* has ever launched communication */
static uint32_t pending_node_count, pending_stall_count;

static void forget(void)
{
    memset(bounds, 0, sizeof bounds);
    memset(names, 0, sizeof names);
    next_vertex = 1;
    launch_count = 0;
    communicates = false;
    ph_pack_free(&pending_nodes), ph_pack_free(&pending_stalls);
    pending_node_count = pending_stall_count = 0;
}

/* ---- bounds of vertices ---- */
struct ph_bound *ph_bound(uint64_t vertex)
{
    struct ph_bound *slot = &bounds[vertex % RING];
    return slot->vertex == vertex ? slot : NULL;
}

void ph_expressions_start(void) { ph_forget_in_child(forget); }

uint64_t ph_vertex_new(uint64_t lower, uint64_t upper)
{
    uint64_t vertex = next_vertex++;
    bounds[vertex % RING] = (struct ph_bound){
        .vertex = vertex, .upper = upper, .lower = lower, .floor = lower, .ceiling = PH_UNKNOWN};
    return vertex;
}

const struct ph_expr *ph_named(uint64_t vertex)
{
    const struct name *name = &names[vertex % NAMES];
    return vertex && name->vertex == vertex ? &name->expr : NULL;
}

static const struct ph_expr *recently_named(uint64_t vertex)
{
    const struct ph_expr *expr = ph_named(vertex);
    return expr && name_count - names[vertex % NAMES].order <= RECENT ? expr : NULL;
}

static uint64_t term_upper(const struct ph_term *term)
{
    struct ph_bound *bound = ph_bound(term->vertex);
    return bound && bound->upper != PH_UNKNOWN
               ? bound->upper + (uint64_t)(term->lag + term->work + term->contention)
               : PH_UNKNOWN;
}

static uint64_t term_lower(const struct ph_term *term)
{
    struct ph_bound *bound = ph_bound(term->vertex);
    return (bound ? bound->lower : 0) + (uint64_t)(term->lag + term->work);
}

void ph_expr_prune(struct ph_expr *expr, uint64_t time)
{
    int kept = 0;
    for (int i = 0; i < expr->count; i++)
        if (term_upper(&expr->term[i]) > time) expr->term[kept++] = expr->term[i];
    expr->count = kept;
}

/* ---- expressions ---- */
void ph_expr_pack(struct ph_pack *pack, const struct ph_expr *expr)
{
    ph_pack_array(pack, (uint32_t)expr->count * 3);
    for (int i = 0; i < expr->count; i++) {
        ph_pack_uint(pack, expr->term[i].vertex);
        ph_pack_int(pack, expr->term[i].lag);
        if (expr->term[i].contention)
            ph_runs_pack(pack, expr->term[i].run, expr->term[i].work, expr->term[i].contention);
        else
            ph_pack_int(pack, expr->term[i].work);
    }
}

uint64_t ph_expr_lower(const struct ph_expr *expr)
{
    uint64_t most = 0;
    for (int i = 0; i < expr->count; i++)
        if (term_lower(&expr->term[i]) > most) most = term_lower(&expr->term[i]);
    return most;
}

uint64_t ph_expr_upper(const struct ph_expr *expr)
{
    uint64_t most = 0;
    for (int i = 0; i < expr->count; i++)
        if (term_upper(&expr->term[i]) > most)
            most = term_upper(&expr->term[i]); /* PH_UNKNOWN is the largest value */
    return most;
}

/* The end of a name's chain was told by the hub, or is not known. What is found is kept, as a chain
 * grows by its end. */
static uint64_t ceiling_of(const struct ph_expr *expr, int depth)
{
    uint64_t most = 0;
    for (int i = 0; i < expr->count; i++) {
        const struct ph_term *term = &expr->term[i];
        struct ph_bound *bound = ph_bound(term->vertex);
        if (!bound) return PH_UNKNOWN;
        uint64_t time = bound->ceiling < bound->upper ? bound->ceiling : bound->upper;
        const struct ph_expr *of = ph_named(term->vertex);
        if (time == PH_UNKNOWN && of && depth < CHAIN)
            time = bound->ceiling = ceiling_of(of, depth + 1);
        if (time == PH_UNKNOWN) return PH_UNKNOWN;
        time += (uint64_t)(term->lag + term->work + term->contention);
        if (time > most) most = time;
    }
    return most;
}

uint64_t ph_expr_ceiling(const struct ph_expr *expr) { return ceiling_of(expr, 0); }

uint64_t ph_expr_floor(const struct ph_expr *expr)
{
    uint64_t most = 0;
    for (int i = 0; i < expr->count; i++) {
        const struct ph_term *term = &expr->term[i];
        const struct ph_bound *bound = ph_bound(term->vertex);
        uint64_t time = (bound ? bound->floor : 0) + (uint64_t)(term->lag + term->work);
        if (time > most) most = time;
    }
    return most;
}

/* Remembers recent communication: it stretches the compute that overlaps it, and only the hub knows
 * by how much. */
void ph_communicated(uint64_t vertex, uint64_t before, uint64_t comm)
{
    struct ph_bound *bound = ph_bound(vertex);
    if (bound) bound->before = before, bound->comm = comm;
    if (launch_count < LAUNCHES) launches[launch_count] = vertex;
    launch_count++;
    communicates = true;
}

void ph_bound_above(struct ph_bound *bound, uint64_t upper)
{
    for (; bound && bound->upper > upper; bound = bound->before ? ph_bound(bound->before) : NULL) {
        bound->upper = upper;
        static bool inside; /* one name deep: earlier names of its stream follow by `before` */
        const struct ph_expr *expr = inside ? NULL : recently_named(bound->vertex);
        if (!expr) continue;
        inside = true;
        ph_expr_reached(expr, upper);
        inside = false;
    }
}

void ph_expr_reached(const struct ph_expr *expr, uint64_t time)
{
    for (int i = 0; i < expr->count; i++)
        ph_bound_above(ph_bound(expr->term[i].vertex),
                       time - (uint64_t)(expr->term[i].lag + expr->term[i].work));
}

void ph_all_over(uint64_t now)
{
    for (uint64_t vertex = next_vertex > RING ? next_vertex - RING : 0; vertex < next_vertex;
         vertex++) {
        struct ph_bound *bound = ph_bound(vertex);
        if (bound && bound->upper > now) bound->upper = now;
    }
    launch_count = 0;
}

void ph_expr_drop_aborted(struct ph_expr *expr)
{
    for (int i = 0; i < expr->count; i++) {
        const struct ph_term *term = &expr->term[i];
        const struct ph_bound *bound = ph_bound(term->vertex);
        if (bound && bound->aborted)
            expr->term[i] =
                (struct ph_term){.lag = (int64_t)bound->upper + term->lag, .work = term->work};
    }
}

static void abort_vertex(struct ph_bound *bound, uint64_t at)
{
    if (bound->lower > at) at = bound->lower; /* what it waits for on its GPU goes on */
    bound->upper = bound->lower = bound->floor = bound->ceiling = at;
    bound->aborted = true;
}

void ph_communication_aborted(uint64_t comm, uint64_t now)
{
    for (uint64_t vertex = next_vertex > RING ? next_vertex - RING : 0; vertex < next_vertex;
         vertex++) {
        struct ph_bound *bound = ph_bound(vertex);
        if (bound && bound->comm == comm && bound->upper > now) abort_vertex(bound, now);
    }
    uint64_t oldest = next_vertex > NAMES ? next_vertex - NAMES : 0;
    for (uint64_t i = oldest; i < next_vertex; i++) { /* a name holds earlier ones only */
        struct name *name = &names[i % NAMES];
        if (!i || name->vertex != i) continue;
        struct ph_bound *bound = ph_bound(i);
        bool waits = false;
        for (int at = 0; bound && at < name->expr.count; at++) {
            const struct ph_bound *of = ph_bound(name->expr.term[at].vertex);
            waits |= of && of->aborted;
        }
        if (!waits) continue;
        ph_expr_drop_aborted(&name->expr);
        uint64_t time = ph_expr_exact(&name->expr, 0);
        if (time != PH_UNKNOWN) abort_vertex(bound, time);
    }
}

/* If exactly one term may lie beyond `now`, the floor of the expression is a floor of that term's
 * vertex. */
void ph_expr_not_before(const struct ph_expr *expr, uint64_t now, uint64_t floor)
{
    const struct ph_term *only = NULL;
    for (int i = 0; i < expr->count; i++) {
        if (term_upper(&expr->term[i]) <= now) continue;
        if (only) return;
        only = &expr->term[i];
    }
    struct ph_bound *bound = only ? ph_bound(only->vertex) : NULL;
    uint64_t weight = only ? (uint64_t)(only->lag + only->work + only->contention) : 0;
    if (bound && floor > weight && floor - weight > bound->floor) bound->floor = floor - weight;
}

void ph_vertex_not_before(uint64_t vertex, uint64_t floor, bool final)
{
    struct ph_bound *bound = ph_bound(vertex);
    if (!bound || bound->aborted) return;
    if (floor > bound->floor) bound->floor = floor;
    if (final) {
        bound->told = true;
        if (floor < bound->ceiling) bound->ceiling = floor;
    }
}

uint64_t ph_expr_oldest(const struct ph_expr *expr, uint64_t otherwise)
{
    for (int i = 0; i < expr->count; i++)
        if (expr->term[i].vertex < otherwise) otherwise = expr->term[i].vertex;
    return otherwise;
}

static bool beside_communication(uint64_t from)
{
    if (launch_count > LAUNCHES) return true;
    for (uint64_t i = 0; i < launch_count; i++) {
        struct ph_bound *bound = ph_bound(launches[i]);
        if (!bound || bound->upper > from) return true;
    }
    return false;
}

/* The time of the expression if it depends on nothing that the hub decides, else PH_UNKNOWN. Terms
 * known to lie before `now` cannot decide it, because the caller's own term is at `now`. */
uint64_t ph_expr_exact(const struct ph_expr *expr, uint64_t now)
{
    uint64_t most = 0;
    for (int i = 0; i < expr->count; i++) {
        const struct ph_term *term = &expr->term[i];
        const struct ph_bound *bound = ph_bound(term->vertex);
        if (term_upper(term) > now) {
            if (!bound || bound->upper != bound->lower) return PH_UNKNOWN;
            if (term->contention && beside_communication(bound->upper + (uint64_t)term->lag))
                return PH_UNKNOWN;
        }
        uint64_t time = bound ? bound->upper + (uint64_t)(term->lag + term->work) : 0;
        if (time > most && time != PH_UNKNOWN) most = time;
    }
    return most;
}

void ph_expr_settle(struct ph_expr *expr)
{
    uint64_t time = ph_expr_exact(expr, 0);
    if (time == PH_UNKNOWN) return;
    expr->count = 1;
    expr->term[0] = (struct ph_term){.lag = (int64_t)time};
}

/* Names the expression: it becomes a vertex of its own, which the next message defines. This keeps
 * expressions short. */
uint64_t ph_expr_name(struct ph_expr *expr)
{
    uint64_t vertex = ph_vertex_new(ph_expr_lower(expr), ph_expr_upper(expr));
    ph_pack_array(&pending_nodes, 2);
    ph_pack_uint(&pending_nodes, vertex);
    ph_expr_pack(&pending_nodes, expr);
    pending_node_count++;
    ph_untold_add(vertex);
    names[vertex % NAMES] = (struct name){vertex, name_count++, *expr};
    expr->count = 1;
    expr->term[0] = (struct ph_term){.vertex = vertex};
    return vertex;
}

void ph_expr_keep(struct ph_expr *expr)
{
    for (int i = 0; i < expr->count && communicates; i++)
        if (expr->term[i].contention) {
            ph_expr_name(expr);
            return;
        }
}

uint64_t ph_expr_cut(struct ph_expr *expr, uint64_t before)
{
    int64_t most = 0;
    for (int i = 0; i < expr->count; i++)
        if (expr->term[i].contention > most) most = expr->term[i].contention;
    if (!communicates || most < CUT_NS) return before;
    uint64_t vertex = ph_expr_name(expr);
    bounds[vertex % RING].before = before;
    return vertex;
}

void ph_expr_run(struct ph_expr *expr, int64_t work, int64_t contention)
{
    ph_run_id before = 0, after = 0;
    for (int i = 0; i < expr->count; i++) {
        struct ph_term *term = &expr->term[i];
        if (communicates && (!after || (term->run && term->run != before))) {
            before = term->run;
            after = ph_run_after(before, work, contention);
        }
        term->work += work, term->contention += contention, term->run = after;
    }
}

void ph_expr_add(struct ph_expr *expr, struct ph_term fresh)
{
    for (int i = 0; i < expr->count; i++)
        if (expr->term[i].vertex == fresh.vertex) {
            if (fresh.lag + fresh.work > expr->term[i].lag + expr->term[i].work)
                expr->term[i] = fresh;
            return;
        }
    if (expr->count >= EXPR_FULL) {
        uint64_t now = ph_clock();
        /* keeps terms at the clock: this may be the host's own expression under construction */
        ph_expr_prune(expr, now ? now - 1 : 0);
        if (expr->count >= EXPR_FULL) ph_expr_name(expr);
    }
    expr->term[expr->count++] = fresh;
}

/* Merges without dropping any term that may decide the result, since a host's wait must not end too
 * early. Two terms of one vertex may be incomparable. One is later without contention; the other is
 * later if communication stretches its work. Then both stay. */
void ph_expr_merge_all(struct ph_expr *expr, const struct ph_expr *other)
{
    for (int i = 0; i < other->count; i++) {
        const struct ph_term *fresh = &other->term[i];
        int64_t least = fresh->lag + fresh->work, most = least + fresh->contention;
        bool covered = false;
        int kept = 0;
        for (int j = 0; j < expr->count; j++) {
            const struct ph_term *term = &expr->term[j];
            bool same = term->vertex == fresh->vertex;
            covered |= same && (term->lag + term->work >= most ||
                                memcmp(term, fresh, offsetof(struct ph_term, run)) == 0);
            if (!same || covered || term->lag + term->work + term->contention > least)
                expr->term[kept++] = *term;
        }
        expr->count = kept;
        if (covered) continue;
        if (expr->count >= EXPR_FULL) ph_expr_name(expr);
        expr->term[expr->count++] = *fresh;
    }
}

void ph_expr_merge(struct ph_expr *expr, const struct ph_expr *other)
{
    for (int i = 0; i < other->count; i++) ph_expr_add(expr, other->term[i]);
}

/* Whether the expression cannot be reached before `fresh`, as far as names say what is in them. */
static bool includes(const struct ph_expr *expr, const struct ph_term *fresh, int64_t lag, int deep)
{
    for (int i = 0; i < expr->count; i++) {
        const struct ph_term *term = &expr->term[i];
        int64_t later = lag + term->lag + term->work;
        if (term->vertex == fresh->vertex && later >= fresh->lag + fresh->work) return true;
        const struct ph_expr *inner =
            deep && term->vertex > fresh->vertex ? recently_named(term->vertex) : NULL;
        if (inner && includes(inner, fresh, later, deep - 1)) return true;
    }
    return false;
}

/* Vertices whose bounds differ come from communication. */
bool ph_expr_waits_for_more(const struct ph_expr *expr, const struct ph_expr *event)
{
    for (int i = 0; i < event->count; i++) {
        struct ph_bound *bound = ph_bound(event->term[i].vertex);
        if (bound && bound->upper == bound->lower) continue;
        if (!includes(expr, &event->term[i], 0, DEEPEST)) return true;
    }
    return false;
}

/* ---- what the next message defines ---- */
void ph_extra_stall(int device, const struct ph_expr *before, const struct ph_expr *after)
{
    ph_pack_array(&pending_stalls, 3);
    ph_pack_uint(&pending_stalls, (uint64_t)device);
    ph_expr_pack(&pending_stalls, before);
    ph_expr_pack(&pending_stalls, after);
    pending_stall_count++;
}

void ph_extra_keep(uint64_t vertex) { keep = vertex; }

void ph_extra_pack(struct ph_pack *body, bool beside, uint64_t waited)
{
    waited = beside ? waited : 0;
    ph_pack_map(body, (pending_node_count > 0) + (pending_stall_count > 0) + beside + (waited > 0) +
                          (keep > 0));
    if (keep) ph_pack_str(body, "keep"), ph_pack_uint(body, keep);
    keep = 0;
    if (beside) ph_pack_str(body, "beside"), ph_pack_uint(body, 1);
    if (waited) ph_pack_str(body, "waited"), ph_pack_uint(body, waited);
    if (pending_node_count) {
        ph_pack_str(body, "nodes");
        ph_pack_array(body, pending_node_count);
        ph_pack_raw(body, pending_nodes.data, pending_nodes.length);
    }
    if (pending_stall_count) {
        ph_pack_str(body, "stalls");
        ph_pack_array(body, pending_stall_count);
        ph_pack_raw(body, pending_stalls.data, pending_stalls.length);
    }
    pending_nodes.length = pending_stalls.length = 0;
    pending_node_count = pending_stall_count = 0;
}

void ph_vertex_known(uint64_t vertex, uint64_t time)
{
    bounds[vertex % RING] = (struct ph_bound){
        .vertex = vertex, .upper = time, .lower = time, .floor = time, .ceiling = time};
}
