/* history.c - going back, and forgetting.
 *
 * Why it exists: it is the counterpart of `_settle`, `_reach`, `_put_back` and `_sweep` in
 * phantora_ns/sim/_flow_engine.py. That file says what a rollback takes back, and why no more. This
 * file also keeps the points that bound the memory of large components (engine.h). */
#include "engine.h"

#include <stdlib.h>

/* ---- which ticks can be restored ---- */

static int64_t points_at_or_before(const struct engine *e, tick_t tick)
{
    int64_t low = 0, high = e->point_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (e->points[middle] <= tick)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The last tick at or before `tick` that can be restored. The beginning of time always can, by
 * running everything again. */
tick_t restorable(const struct engine *e, tick_t tick)
{
    if (tick >= e->all_from) return tick;
    int64_t count = points_at_or_before(e, tick);
    return count ? e->points[count - 1] : TICK_MIN;
}

static void insert_point(struct engine *e, tick_t tick)
{
    int64_t at = points_at_or_before(e, tick);
    if (at && e->points[at - 1] == tick) return;
    RESERVE(e->points, e->point_room, e->point_count + 1);
    for (int64_t i = e->point_count++; i > at; i--) e->points[i] = e->points[i - 1];
    e->points[at] = tick;
}

/* Called after `tick` has been run. Once 32 flows have been rated for each active flow, the cost of
 * a point is small in comparison. A point is only set if all flows have reached this tick, because
 * flows ahead of it may have dropped their state at this tick. */
void mark_point(struct engine *e, tick_t tick)
{
    if (e->all_from < TICK_MAX || e->work < 32 * e->active_flows || tick < e->now) return;
    insert_point(e, tick + 1);
    e->work = 0;
}

static int by_tick(const void *a, const void *b)
{
    tick_t x = *(const tick_t *)a, y = *(const tick_t *)b;
    return (x > y) - (x < y);
}

/* Makes a few ticks restorable instead of every tick. The points are at equal shares of the log
 * entries. There are as many as fill half of the budget. */
static void choose_points(struct engine *e)
{
    enum { SAMPLE = 4096, MOST = 64 };
    int64_t chosen = e->budget / (2 * (e->active_flows + 1));
    chosen = chosen < 2 ? 2 : chosen > MOST ? MOST : chosen;
    tick_t *sample = grow_array(NULL, sizeof *sample, SAMPLE);
    int64_t seen = 0, taken = 0, stride = e->entries / SAMPLE + 1;
    for (int32_t flow = 0; flow < e->slots; flow++) {
        if (e->state[flow] == FREE) continue;
        for (const struct entry *entry = e->flows[flow].older; entry != NULL; entry = entry->older)
            if (seen++ % stride == 0 && taken < SAMPLE) sample[taken++] = entry->since;
    }
    qsort(sample, (size_t)taken, sizeof *sample, by_tick);
    for (int64_t i = 0; i < chosen && taken; i++)
        if (sample[i * taken / chosen] >= e->all_from)
            insert_point(e, sample[i * taken / chosen] + 1);
    insert_point(e, e->now + 1);
    e->all_from = TICK_MAX;
    e->work = 0;
    free(sample);
}

/* Drops every other point, but keeps the first and the last. So older points are rarer. */
static void thin_points(struct engine *e)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < e->point_count; i++)
        if (i == 0 || i == e->point_count - 1 || i % 2) e->points[kept++] = e->points[i];
    e->point_count = kept;
}

/* Drops entries that no restorable tick needs. An entry is the state at the ticks after its own, up
 * to the tick of the next newer entry. */
static void prune_log(struct engine *e, int32_t flow)
{
    tick_t newer = e->since[flow];
    struct entry **at = &e->flows[flow].older;
    while (*at != NULL) {
        struct entry *entry = *at;
        bool needed = restorable(e, newer) > entry->since;
        newer = entry->since;
        if (needed)
            at = &entry->older;
        else
            log_drop(e, at);
    }
}

static void prune(struct engine *e)
{
    for (int32_t flow = 0; flow < e->slots; flow++)
        if (e->state[flow] != FREE && e->flows[flow].older != NULL) prune_log(e, flow);
}

void keep_budget(struct engine *e)
{
    if (e->entries <= e->budget) return;
    if (e->all_from < TICK_MAX)
        choose_points(e);
    else
        thin_points(e);
    prune(e);
    /* with many flows and few points, thinning again would leave no points */
    if (e->entries * 4 > e->budget * 3) e->budget = e->entries * 2;
}

/* ---- rollback ---- */

struct reach {
    /* counts in e->found (flows) and e->stack (links); `next`: the first link not yet visited */
    int64_t flows, links, next;
};

static void reach_link(struct engine *e, struct reach *reach, int32_t number)
{
    struct link *link = &e->links[number];
    if (link->reach_stamp == e->stamp) return;
    link->reach_stamp = e->stamp;
    RESERVE(e->stack, e->stack_room, reach->links + 1);
    e->stack[reach->links++] = number;
}

static void take_up(struct engine *e, struct reach *reach, int32_t flow)
{
    if (e->flows[flow].rolled == e->settling) return;
    e->flows[flow].rolled = e->settling;
    RESERVE(e->found, e->found_room, reach->flows + 1);
    e->found[reach->flows++] = flow;
    for (int32_t i = 0; i < e->paths[flow].length; i++)
        reach_link(e, reach, e->route_link[e->paths[flow].first + i]);
}

static void reach_all(struct engine *e, struct reach *reach, tick_t tick)
{
    while (reach->next < reach->links) {
        struct link *link = &e->links[e->stack[reach->next++]];
        while (link->past_count > link->forgotten &&
               e->done[link->past[link->past_count - 1]] >= tick) {
            take_up(e, reach, link->past[--link->past_count]);
            e->past_references--;
        }
        for (int32_t i = 0; i < link->count; i++) take_up(e, reach, link->members[i].flow);
    }
}

static void restore(struct engine *e, int32_t flow, tick_t tick, struct component *again)
{
    bool active = e->state[flow] == ACTIVE;
    struct group *group = &e->groups[e->flows[flow].group];
    if (group->reported && !group->suspect) {
        group->suspect = true;
        RESERVE(e->suspects, e->suspect_room, e->suspect_count + 1);
        e->suspects[e->suspect_count++] = e->flows[flow].group;
    }
    while (e->since[flow] >= tick && e->flows[flow].older != NULL) log_pop(e, flow);
    if (e->since[flow] >= tick) {
        if (active) link_leave(e, flow);
        e->state[flow] = PENDING;
        heap_push(&e->pending, e->flows[flow].start, (void *)(intptr_t)flow);
        return;
    }
    e->done[flow] = end_tick(e->since[flow], e->left[flow], e->rate[flow]);
    if (!active) link_enter(e, flow);
    component_add(e, again, flow);
}

static void put_back(struct engine *e, const struct reach *reach, tick_t tick)
{
    struct component *again = component_new(e);
    e->touched_count = 0;
    for (int64_t i = 0; i < reach->flows; i++) {
        int32_t flow = e->found[i];
        struct component *left = e->component[flow];
        if (left != NULL) {
            component_remove(e, flow);
            left->order_count = -1;
            if (!left->touched) {
                left->touched = true;
                RESERVE(e->touched, e->touched_room, e->touched_count + 1);
                e->touched[e->touched_count++] = left;
            }
        }
        restore(e, flow, tick, again);
    }
    for (int64_t i = 0; i < e->touched_count; i++) {
        e->touched[i]->touched = false;
        schedule(e, e->touched[i]);
        if (e->touched[i]->count == 0) component_free(e, e->touched[i]);
    }
    again->lost = again->count; /* splits the component when it is next rated */
    schedule(e, again);
    if (again->count == 0) component_free(e, again);
    for (int64_t i = 0; i < reach->links; i++) {
        const struct link *link = &e->links[e->stack[i]];
        for (int32_t k = link->capacity_count; k-- > 0 && link->capacities[k].since >= tick;)
            if (link->capacities[k].since <= e->now && link->capacities[k].since > TICK_MIN)
                heap_push(&e->changes, link->capacities[k].since, (void *)(intptr_t)e->stack[i]);
    }
}

static int by_late(const void *a, const void *b)
{
    tick_t x = ((const struct late *)a)->tick, y = ((const struct late *)b)->tick;
    return (x > y) - (x < y);
}

static void reach_seeds(struct engine *e, struct reach *reach, const struct late *late)
{
    if (late->flow < 0) {
        reach_link(e, reach, late->link);
        return;
    }
    for (int32_t k = 0; k < e->paths[late->flow].length; k++)
        reach_link(e, reach, e->route_link[e->paths[late->flow].first + k]);
}

/* Takes all flows back to `point`, which is restorable. Then no flow is ahead of it. */
static void rewind_all(struct engine *e, tick_t point)
{
    struct reach reach = {0};
    e->settling++;
    e->stamp++;
    for (int32_t i = 0; i < e->link_count; i++) reach_link(e, &reach, i);
    reach_all(e, &reach, point);
    put_back(e, &reach, point);
    e->now = point - 1;
}

/* Settles late arrivals where not every tick can be restored. If they reach a large part of the
 * history, all flows go back, so that points can be marked again on the way forward. Otherwise only
 * the reached flows go back, and the others stay ahead. */
static void settle_from_point(struct engine *e)
{
    tick_t point = restorable(e, e->late[0].tick), now = e->now;
    struct reach reach = {0};
    e->stamp++;
    for (int64_t i = 0; i < e->late_count; i++) reach_seeds(e, &reach, &e->late[i]);
    reach_all(e, &reach, point);
    e->rollbacks += reach.flows > 0;
    put_back(e, &reach, point);
    if (reach.flows * 4 > e->live_flows - e->pending.count) rewind_all(e, point);
    while (next_tick(e) <= now) run_step(e);
}

/* Takes back what the late flows and capacities may affect, then runs forward to the present tick
 * again. */
void settle(struct engine *e)
{
    if (e->late_count == 0) return;
    e->settling++;
    qsort(e->late, (size_t)e->late_count, sizeof *e->late, by_late);
    if (e->late[0].tick < e->all_from) {
        settle_from_point(e);
        e->late_count = 0;
        return;
    }
    for (int64_t i = 0; i < e->late_count; i++) {
        struct reach reach = {0};
        e->stamp++;
        reach_seeds(e, &reach, &e->late[i]);
        reach_all(e, &reach, e->late[i].tick);
        e->rollbacks += reach.flows > 0;
        put_back(e, &reach, e->late[i].tick);
    }
    e->late_count = 0;
    while (next_tick(e) <= e->now) run_step(e);
}

/* ---- forgetting ---- */

static void forget_points(struct engine *e, tick_t base)
{
    if (e->all_from < TICK_MAX && e->all_from <= base) {
        e->point_count = 0;
        return;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < e->point_count; i++)
        if (e->points[i] >= base) e->points[kept++] = e->points[i];
    e->point_count = kept;
}

static void forget_links(struct engine *e, tick_t base)
{
    for (int32_t number = 0; number < e->link_count; number++) {
        struct link *link = &e->links[number];
        int32_t first = link->forgotten, kept = 0;
        while (first < link->past_count && e->done[link->past[first]] < base) first++;
        e->past_references -= first - link->forgotten;
        for (int32_t i = first; i < link->past_count; i++) link->past[kept++] = link->past[i];
        link->past_count = kept;
        link->forgotten = 0;
        first = link->capacity_count - 1;
        while (first > 0 && link->capacities[first].since >= base) first--;
        for (int32_t i = first; i < link->capacity_count; i++)
            link->capacities[i - first] = link->capacities[i];
        link->capacity_count -= first;
    }
}

static void forget_log(struct engine *e, int32_t flow, tick_t base)
{
    /* drops what is older than the newest state before `base` */
    struct entry **after = &e->flows[flow].older;
    if (e->since[flow] >= base) {
        while (*after != NULL && (*after)->since >= base) after = &(*after)->older;
        if (*after != NULL) after = &(*after)->older;
    }
    while (*after != NULL) log_drop(e, after);
}

/* Forgets the members that no rollback can reach any more. A group without members is forgotten
 * too, unless ph_flows_changed has yet to report that its completion moved. */
static void forget_group(struct engine *e, int32_t number, tick_t base)
{
    struct group *group = &e->groups[number];
    for (int32_t *at = &group->first; *at >= 0;) {
        int32_t flow = *at;
        if (e->state[flow] == ACTIVE || e->state[flow] == ENDED) forget_log(e, flow, base);
        if (e->state[flow] != ENDED || e->done[flow] >= base) {
            at = &e->flows[flow].next_member;
            continue;
        }
        group->latest = e->done[flow] > group->latest ? e->done[flow] : group->latest;
        *at = e->flows[flow].next_member;
        flow_free(e, flow);
    }
    if (group->first >= 0) return;
    int64_t time_ns = tick_to_ns(group->latest);
    if (group->suspect && group->reported_ns != time_ns) return;
    group->suspect = false;
    result_add(e, number, time_ns);
    group_free(e, number);
}

/* The tick that a sweep keeps restorable. If there has been no new point since the last sweep, the
 * horizon becomes a point. */
static tick_t find_base(struct engine *e)
{
    tick_t base = restorable(e, e->horizon);
    if (base == e->horizon || base != e->base) return base;
    rewind_all(e, base);
    while (next_tick(e) < e->horizon) run_step(e);
    insert_point(e, e->horizon);
    return e->horizon;
}

/* Drops what no rollback to the horizon can need. The results are the groups that are forgotten. */
void sweep(struct engine *e)
{
    int64_t kept = 0;
    tick_t base = e->base = find_base(e);
    forget_links(e, base);
    for (int32_t group = 0; group < e->group_slots; group++)
        if (e->groups[group].live) forget_group(e, group, base);
    for (int64_t i = 0; i < e->suspect_count; i++)
        if (e->groups[e->suspects[i]].suspect) e->suspects[kept++] = e->suspects[i];
    e->suspect_count = kept;
    forget_points(e, base);
    if (e->all_from == TICK_MAX && e->entries * 4 < e->budget) e->all_from = e->now + 1;
    e->grown = 0;
    e->sweep_at = 256 + e->live_flows + e->entries;
}
