/* engine.h - the data of the flow simulator's compiled engine.
 *
 * Why it exists: a ring of 1,024 GPUs is 1,024 flows that never meet, and plain Python spends 20 us
 * on each. This engine does what phantora_ns/sim/_flow_engine.py does, in the same arithmetic, so
 * that both give the same bits. phantora_ns/sim/_flow_time.py says why that matters. Read the
 * Python engine first. This engine differs as follows:
 *
 * - Numbers that every computation of rates visits are in arrays by flow slot, separate from rarely
 * needed data.
 *
 * - A flow's present state is in those arrays. Only older entries of its log are allocated.
 *
 * - A component remembers its last filling, level by level. When flows only leave, it is filled
 * again from the level of the slowest of them upwards (fill.c).
 *
 * - Logs have a budget. Within the budget every tick can be restored. When a large component
 * exceeds the budget, only chosen ticks (`points`) remain restorable. The entries between them are
 * dropped, and a rollback starts from the nearest point before the tick that it needs. This changes
 * the cost of a rollback, never a result. */
#ifndef PHANTORA_FLOWS_ENGINE_H
#define PHANTORA_FLOWS_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ticks of 2^-20 ns in 64 bits would end after 2.4 hours of simulated time. */
__extension__ typedef __int128 tick_t;

#define TICK_MIN (-((tick_t)1 << 120))
#define TICK_MAX ((tick_t)1 << 120)

enum state { FREE, PENDING, ACTIVE, ENDED };

struct entry { /* one older line of a flow's log */
    tick_t since;
    double left, rate;
    struct entry *older;
};

struct component { /* closed under sharing a link; may be more than one connected set */
    int32_t *flows;
    int32_t count, room, lost, heap_at;
    tick_t next; /* the first end of its flows, while in the heap of events */
    /* every link that its flows cross, perhaps also links that they have left; valid if link_count
     * >= 0 */
    int32_t *links;
    int32_t link_count, link_room, capped;
    /* its flows in the order in which filling froze them; valid if order_count >= 0 */
    int32_t *order;
    int32_t order_count, order_room;
    /* the lowest rate of the flows that have left since; the levels below it have not changed */
    double restart;
    bool touched;
    int32_t few[5];
};

/* The part of a flow that filling visits. It is kept to 32 bytes because large components do not
 * fit in the caches. */
struct path {
    int32_t first, length; /* its part of the pool of routes */
    double weight;         /* on each of its links; 0: the weights differ, see route_weight */
    double cap, rate;      /* rate: the result */
};

/* A link's state after a level of filling. */
struct level {
    double level, left, rated; /* rated: weight frozen up to and including this level */
};

/* The part of a link that filling visits. */
struct filling {
    double left, share, weight, taken;
};

struct member {
    int32_t flow, place; /* place: index into the pool of routes */
};

struct since_capacity {
    tick_t since;
    double bytes_per_ns;
};

struct link {
    struct member *members; /* active flows */
    int32_t count, room;
    /* ended flows that a rollback may bring back, sorted by end; the first `forgotten` entries are
     * void */
    int32_t *past;
    int32_t past_count, past_room, forgotten;
    struct since_capacity *capacities;
    int32_t capacity_count, capacity_room;
    uint64_t fill_stamp, reach_stamp;
    double weight;        /* sum over the active flows; weights are counts, so it is exact */
    struct level *levels; /* of the last filling, where kept */
    int32_t level_count, level_room;
};

struct flow { /* the rarely needed data of a flow */
    tick_t start;
    double size;
    struct entry *older;
    uint64_t rolled;
    int32_t group, next_member;
};

/* what a handle stands for: flows that start together. It is complete when the last of them is. */
struct group {
    int32_t first; /* its first flow that has not been forgotten; -1: none */
    bool live, reported, suspect;
    tick_t latest; /* the last end of its forgotten flows */
    int64_t start_ns, reported_ns;
};

struct heap_item {
    tick_t key;
    void *item;
};

struct heap {
    struct heap_item *items;
    int64_t count, room;
    bool tracked; /* items are components, which store their index in the heap */
};

struct late {
    tick_t tick;
    int32_t flow, link; /* one of the two is -1 */
};

struct result {
    int64_t group, time_ns;
};

struct level_link {
    double share;
    int32_t link;
};

struct level_cap {
    double cap;
    int32_t flow;
};

struct engine {
    struct link *links;
    struct filling *fillings; /* by link */
    int32_t link_count;

    /* by slot */
    struct flow *flows;
    uint8_t *state;
    uint8_t *open; /* the filling (modulo 256) that has yet to rate the flow; 0: none */
    struct path *paths;
    double *left, *rate;
    tick_t *since, *done;
    struct component **component;
    int32_t *component_at;
    int32_t slots, slot_room;
    int32_t *free_slots;
    int32_t free_count, free_room;

    struct group *groups;
    int32_t group_slots, group_room;
    int32_t *free_groups;
    int32_t free_group_count, free_group_room;

    /* pool of routes: blocks of a few sizes */
    int32_t *route_link, *route_at;
    double *route_weight;
    int32_t route_used, route_room;
    int32_t free_routes[64];

    struct heap events, changes;
    struct heap pending; /* void if the flow no longer waits, or starts at another tick */
    struct component *spare_components; /* chained through `flows` */
    struct entry *spare_entries, **entry_chunks;
    int64_t entry_chunk_count, entry_chunk_room;
    int64_t entries, live_flows, active_flows, past_references;

    tick_t now, horizon, base; /* base: the earliest tick that the last sweep kept restorable */
    struct late *late;
    int64_t late_count, late_room;
    int32_t *suspects; /* groups with a reported completion that a rollback may have moved */
    int64_t suspect_count, suspect_room;
    uint64_t settling, stamp;
    uint8_t filling;

    tick_t all_from; /* every tick from here on can be restored; of earlier ticks only the points */
    tick_t *points;
    int64_t point_count, point_room;
    int64_t work;     /* flows rated since the last point */
    tick_t point_now; /* the last restorable tick at or before the tick being run */
    int64_t budget;

    int64_t grown, sweep_at, rollbacks, events_run;

    struct result *results;
    int64_t result_count, result_room;

    /* scratch */
    struct component **touched;
    int64_t touched_count, touched_room;
    int32_t *stack, *frozen, *level_touched, *found;
    /* the flows that the last filling rated; the component's other flows keep their rates */
    const int32_t *fresh;
    int32_t fresh_count;
    int64_t stack_room, frozen_room, level_touched_room, found_room;
    struct level_link *level_links;
    int64_t level_link_room;
    struct level_cap *level_caps;
    int64_t level_cap_room;
};

/* Makes room for `need` items in `array`. Ends the process when memory is exhausted. */
#define RESERVE(array, room, need)                                                                 \
    do {                                                                                           \
        if ((int64_t)(need) > (int64_t)(room)) {                                                   \
            int64_t more_ =                                                                        \
                (int64_t)(room) * 2 > (int64_t)(need) ? (int64_t)(room) * 2 : (int64_t)(need) + 8; \
            (array) = grow_array((array), sizeof *(array), more_);                                 \
            (room) = more_;                                                                        \
        }                                                                                          \
    } while (0)

void *grow_array(void *array, size_t size, int64_t count);

/* store.c */
void heap_push(struct heap *heap, tick_t key, void *item);
void heap_remove(struct heap *heap, int64_t at);
void heap_rekey(struct heap *heap, int64_t at, tick_t key);
struct component *component_new(struct engine *e);
void component_free(struct engine *e, struct component *c);
void component_add(struct engine *e, struct component *c, int32_t flow);
void component_remove(struct engine *e, int32_t flow);
int32_t flow_new(struct engine *e, const int32_t *links, int64_t count, double weight);
void flow_free(struct engine *e, int32_t flow);
int32_t group_new(struct engine *e);
void group_join(struct engine *e, int32_t group, int32_t flow);
void group_free(struct engine *e, int32_t group);
void link_enter(struct engine *e, int32_t flow);
void link_leave(struct engine *e, int32_t flow);
void log_push(struct engine *e, int32_t flow);
void log_drop(struct engine *e, struct entry **at);
void log_pop(struct engine *e, int32_t flow);
double capacity_at(const struct link *link, tick_t tick);
void schedule(struct engine *e, struct component *c);
void result_add(struct engine *e, int32_t group, int64_t time_ns);

/* time.c: the arithmetic of _flow_time.py */
tick_t ns_to_tick(int64_t time_ns);
int64_t tick_to_ns(tick_t tick);
double bytes_left(double left, double rate, tick_t ticks);
tick_t end_tick(tick_t tick, double left, double rate);

/* fill.c */
void fair_rates(struct engine *e, struct component *c, tick_t tick);

/* run.c */
tick_t next_tick(struct engine *e);
void run_step(struct engine *e);

/* history.c */
tick_t restorable(const struct engine *e, tick_t tick);
void settle(struct engine *e);
void mark_point(struct engine *e, tick_t tick);
void keep_budget(struct engine *e);
void sweep(struct engine *e);

#endif
