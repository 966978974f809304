/* api.c - the functions that phantora_ns/sim/_flow_native.py calls, and their contract.
 *
 * Why it exists: the engine's interface is as narrow as the Python engine's. Batches go in and
 * results come out, so a call itself costs little compared with what it computes. Times are
 * nanoseconds, and slots number the flows. The caller has validated the arguments. */
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Declares and defines an exported function. No header declares these functions, because only
 * Python calls them. */
#define API(type, name, parameters)                              \
    __attribute__((visibility("default"))) type name parameters; \
    type name parameters

/* Log entries kept by default: 6 MB, what the caches of today's machines hold. */
#define DEFAULT_BUDGET (1 << 17)

API(struct engine *, ph_flows_new, (int32_t count, const double *capacities, int64_t budget))
{
    struct engine *e = grow_array(NULL, sizeof *e, 1);
    *e = (struct engine){.link_count = count,
                         .now = TICK_MIN,
                         .horizon = TICK_MIN,
                         .base = TICK_MAX,
                         .all_from = TICK_MIN,
                         .sweep_at = 256};
    e->budget = budget > 0 ? budget : DEFAULT_BUDGET;
    e->events.tracked = true;
    memset(e->free_routes, 0xff, sizeof e->free_routes);
    e->links = grow_array(NULL, sizeof *e->links, count ? count : 1);
    e->fillings = grow_array(NULL, sizeof *e->fillings, count ? count : 1);
    for (int32_t i = 0; i < count; i++) {
        e->links[i] = (struct link){0};
        RESERVE(e->links[i].capacities, e->links[i].capacity_room, 1);
        e->links[i].capacities[e->links[i].capacity_count++] =
            (struct since_capacity){TICK_MIN, capacities[i]};
    }
    return e;
}

API(void, ph_flows_free, (struct engine * e))
{
    for (int32_t i = 0; i < e->slots; i++) {
        struct component *c = e->state[i] == ACTIVE ? e->component[i] : NULL;
        if (c == NULL) continue;
        for (int32_t k = 0; k < c->count; k++) e->component[c->flows[k]] = NULL;
        component_free(e, c);
    }
    for (int64_t i = 0; i < e->entry_chunk_count; i++) free(e->entry_chunks[i]);
    for (struct component *c = e->spare_components, *more; c != NULL; c = more) {
        more = (struct component *)(void *)c->flows;
        free(c);
    }
    for (int32_t i = 0; i < e->link_count; i++) {
        free(e->links[i].members);
        free(e->links[i].past);
        free(e->links[i].capacities);
        free(e->links[i].levels);
    }
    void *arrays[] = {
        e->links,         e->flows,        e->state,        e->open,         e->paths,
        e->left,          e->rate,         e->fillings,     e->since,        e->done,
        e->component,     e->component_at, e->free_slots,   e->groups,       e->free_groups,
        e->route_link,    e->route_at,     e->route_weight, e->events.items, e->pending.items,
        e->changes.items, e->late,         e->suspects,     e->points,       e->entry_chunks,
        e->results,       e->touched,      e->stack,        e->frozen,       e->level_touched,
        e->found,         e->level_links,  e->level_caps};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    free(e);
}

static void add_late(struct engine *e, tick_t tick, int32_t flow, int32_t link)
{
    RESERVE(e->late, e->late_room, e->late_count + 1);
    e->late[e->late_count++] = (struct late){tick, flow, link};
}

static int32_t add_one(struct engine *e, int32_t group, int64_t start_ns, double size, double cap,
                       int64_t count, const int32_t *links, int64_t length)
{
    int32_t flow = flow_new(e, links, length, (double)count);
    e->flows[flow].start = ns_to_tick(start_ns);
    e->flows[flow].size = size;
    e->paths[flow].cap = cap;
    group_join(e, group, flow);
    heap_push(&e->pending, e->flows[flow].start, (void *)(intptr_t)flow);
    if (e->flows[flow].start <= e->now) add_late(e, e->flows[flow].start, flow, -1);
    e->grown++;
    return flow;
}

/* Adds `count` groups of one flow. Flow i crosses links[offsets[i]] to links[offsets[i + 1] - 1],
 * at least one link. The groups' numbers go to `groups`. */
API(void, ph_flows_add,
    (struct engine * e, int64_t count, const int64_t *starts, const double *sizes,
     const double *caps, const int64_t *counts, const int64_t *offsets, const int32_t *links,
     int32_t *groups))
{
    for (int64_t i = 0; i < count; i++) {
        groups[i] = group_new(e);
        e->groups[groups[i]].start_ns = starts[i];
        add_one(e, groups[i], starts[i], sizes[i], caps[i], counts[i], links + offsets[i],
                offsets[i + 1] - offsets[i]);
    }
}

/* Adds one group of `count` flows, at least one, that start together. Returns its number. */
API(int32_t, ph_flows_add_group,
    (struct engine * e, int64_t start, int64_t count, const double *sizes, const double *caps,
     const int64_t *counts, const int64_t *offsets, const int32_t *links))
{
    int32_t group = group_new(e);
    e->groups[group].start_ns = start;
    for (int64_t i = 0; i < count; i++)
        add_one(e, group, start, sizes[i], caps[i], counts[i], links + offsets[i],
                offsets[i + 1] - offsets[i]);
    return group;
}

static void move_flow(struct engine *e, int32_t flow, tick_t start)
{
    tick_t before = e->flows[flow].start, first = start < before ? start : before;
    e->flows[flow].start = start;
    if (e->state[flow] == PENDING) /* its other entry in the heap is now void */
        heap_push(&e->pending, start, (void *)(intptr_t)flow);
    if (first <= e->now) add_late(e, first, flow, -1);
    e->grown++;
}

/* Moves the group's start to `start_ns`, as if the group had been added with that start. None of
 * its flows may have been forgotten. */
API(void, ph_flows_move, (struct engine * e, int32_t group, int64_t start_ns))
{
    e->groups[group].start_ns = start_ns;
    for (int32_t flow = e->groups[group].first; flow >= 0; flow = e->flows[flow].next_member)
        move_flow(e, flow, ns_to_tick(start_ns));
}

/* Takes the group away: it starts at `never_ns`, and no result tells of it. */
API(void, ph_flows_withdraw, (struct engine * e, int32_t group, int64_t never_ns))
{
    e->groups[group].reported = e->groups[group].suspect = false;
    ph_flows_move(e, group, never_ns);
}

API(void, ph_flows_set_capacity,
    (struct engine * e, int64_t at_ns, int32_t number, double bytes_per_ns))
{
    tick_t tick = ns_to_tick(at_ns);
    struct link *link = &e->links[number];
    int32_t at = link->capacity_count;
    while (link->capacities[at - 1].since > tick) at--;
    if (link->capacities[at - 1].since == tick) {
        link->capacities[at - 1].bytes_per_ns = bytes_per_ns;
    } else {
        RESERVE(link->capacities, link->capacity_room, link->capacity_count + 1);
        memmove(link->capacities + at + 1, link->capacities + at,
                (size_t)(link->capacity_count - at) * sizeof *link->capacities);
        link->capacities[at] = (struct since_capacity){tick, bytes_per_ns};
        link->capacity_count++;
    }
    heap_push(&e->changes, tick, (void *)(intptr_t)number);
    if (tick <= e->now) add_late(e, tick, -1, number);
    e->grown++;
}

API(void, ph_flows_settle, (struct engine * e)) { settle(e); }

static int64_t run_to_end(struct engine *e, int32_t number)
{
    const struct group *group = &e->groups[number];
    tick_t latest = group->latest;
    for (int32_t flow = group->first; flow >= 0; flow = e->flows[flow].next_member) {
        while (e->state[flow] != ENDED) run_step(e);
        latest = e->done[flow] > latest ? e->done[flow] : latest;
    }
    return tick_to_ns(latest);
}

/* The completion in nanoseconds. */
API(int64_t, ph_flows_completion, (struct engine * e, int32_t group))
{
    settle(e);
    int64_t time_ns = run_to_end(e, group);
    e->groups[group].reported = true;
    e->groups[group].reported_ns = time_ns;
    return time_ns;
}

/* Stores the reported completions that have moved as results. Returns how many. */
API(int64_t, ph_flows_changed, (struct engine * e))
{
    settle(e);
    e->result_count = 0;
    for (int64_t i = 0; i < e->suspect_count; i++) {
        struct group *group = &e->groups[e->suspects[i]];
        if (!group->suspect) continue; /* withdrawn */
        int64_t time_ns = run_to_end(e, e->suspects[i]);
        group->suspect = false;
        if (time_ns != group->reported_ns) result_add(e, e->suspects[i], time_ns);
        group->reported_ns = time_ns;
    }
    e->suspect_count = 0;
    return e->result_count;
}

/* Runs up to `before_ns` and forgets what no rollback can need. The results are the groups that are
 * forgotten. Returns how many. */
API(int64_t, ph_flows_commit, (struct engine * e, int64_t before_ns))
{
    tick_t horizon = ns_to_tick(before_ns);
    settle(e);
    e->result_count = 0;
    if (horizon > e->horizon) e->horizon = horizon;
    while (next_tick(e) < e->horizon) run_step(e);
    if (e->grown >= e->sweep_at) sweep(e);
    return e->result_count;
}

API(const struct result *, ph_flows_results, (const struct engine *e)) { return e->results; }

/* rollbacks, events, retained objects, the most slots used at once */
API(void, ph_flows_statistics, (const struct engine *e, int64_t out[4]))
{
    int64_t changes = 0;
    for (int32_t i = 0; i < e->link_count; i++) changes += e->links[i].capacity_count;
    out[0] = e->rollbacks;
    out[1] = e->events_run;
    out[2] = e->live_flows + e->entries + e->past_references + e->events.count + e->pending.count +
             e->changes.count + e->suspect_count + e->point_count + changes + e->group_slots -
             e->free_group_count;
    out[3] = e->slots;
}

/* ---- what `check` reads: a tick as two 64-bit halves, high first ---- */

static void split_tick(tick_t tick, int64_t out[2])
{
    out[0] = (int64_t)(tick >> 64);
    out[1] = (int64_t)(uint64_t)tick;
}

/* `since`: the logs are complete from this tick on. It lies beyond `now` while the logs are being
 * thinned. */
API(void, ph_flows_now, (const struct engine *e, int64_t now[2], int64_t since[2]))
{
    split_tick(e->now, now);
    split_tick(e->all_from > e->horizon ? e->all_from : e->horizon, since);
}

/* The group's start, and the end of its last flow. False: some flows have not ended. */
API(bool, ph_flows_group,
    (const struct engine *e, int32_t number, int64_t *start_ns, int64_t done[2]))
{
    tick_t latest = e->groups[number].latest;
    *start_ns = e->groups[number].start_ns;
    for (int32_t member = e->groups[number].first; member >= 0;
         member = e->flows[member].next_member) {
        if (e->state[member] != ENDED) return false;
        latest = e->done[member] > latest ? e->done[member] : latest;
    }
    split_tick(latest, done);
    return true;
}

/* Returns the state of the flow (enum state). Stores its start, its end (if it has ended), its size
 * and cap, and the numbers of its log entries and of the links on its route. */
API(int, ph_flows_flow,
    (const struct engine *e, int32_t flow, int64_t start[2], int64_t done[2], double size_cap[2],
     int64_t lengths[2]))
{
    if (e->state[flow] == FREE) return FREE;
    split_tick(e->flows[flow].start, start);
    split_tick(e->state[flow] == ENDED ? e->done[flow] : 0, done);
    size_cap[0] = e->flows[flow].size;
    size_cap[1] = e->paths[flow].cap;
    lengths[0] = e->state[flow] != PENDING;
    for (const struct entry *entry = e->flows[flow].older; entry != NULL; entry = entry->older)
        lengths[0]++;
    lengths[1] = e->paths[flow].length;
    return e->state[flow];
}

/* Stores the log, newest entry first, and the route. The arrays have the lengths that ph_flows_flow
 * gave. */
API(void, ph_flows_log,
    (const struct engine *e, int32_t flow, int64_t (*since)[2], double *left, double *rate,
     int32_t *links, double *weights))
{
    int64_t i = 0;
    if (e->state[flow] != PENDING) {
        split_tick(e->since[flow], since[i]);
        left[i] = e->left[flow];
        rate[i++] = e->rate[flow];
    }
    for (const struct entry *entry = e->flows[flow].older; entry != NULL;
         entry = entry->older, i++) {
        split_tick(entry->since, since[i]);
        left[i] = entry->left;
        rate[i] = entry->rate;
    }
    memcpy(links, e->route_link + e->paths[flow].first,
           (size_t)e->paths[flow].length * sizeof *links);
    memcpy(weights, e->route_weight + e->paths[flow].first,
           (size_t)e->paths[flow].length * sizeof *weights);
}

/* Stores the link's capacities since the horizon and returns how many there are. `since` and
 * `values` may be NULL, to ask for the number only. */
API(int32_t, ph_flows_capacities,
    (const struct engine *e, int32_t number, int64_t (*since)[2], double *values))
{
    const struct link *link = &e->links[number];
    for (int32_t i = 0; since != NULL && i < link->capacity_count; i++) {
        split_tick(link->capacities[i].since, since[i]);
        values[i] = link->capacities[i].bytes_per_ns;
    }
    return link->capacity_count;
}
