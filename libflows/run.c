/* run.c - running forward: what happens at a tick.
 *
 * Why it exists: it is the counterpart of `_step` and what that calls in
 * phantora_ns/sim/_flow_engine.py. A tick processes ends first, then starts and new capacities.
 * Then each touched component gets new rates, once. */
#include "engine.h"

static bool waits(const struct engine *e, const struct heap_item *item)
{
    int32_t flow = (int32_t)(intptr_t)item->item;
    return e->state[flow] == PENDING && e->flows[flow].start == item->key;
}

tick_t next_tick(struct engine *e)
{
    tick_t next = TICK_MAX;
    while (e->pending.count && !waits(e, &e->pending.items[0])) heap_remove(&e->pending, 0);
    const struct heap *heaps[] = {&e->events, &e->pending, &e->changes};
    for (int i = 0; i < 3; i++)
        if (heaps[i]->count && heaps[i]->items[0].key < next) next = heaps[i]->items[0].key;
    return next;
}

static void touch(struct engine *e, struct component *c)
{
    if (c->touched) return;
    c->touched = true;
    RESERVE(e->touched, e->touched_room, e->touched_count + 1);
    e->touched[e->touched_count++] = c;
}

static void retire(struct engine *e, struct component *c, tick_t tick)
{
    for (int32_t i = c->count; i-- > 0;) {
        int32_t flow = c->flows[i];
        if (e->done[flow] != tick) continue;
        component_remove(e, flow);
        c->lost++;
        c->restart = e->rate[flow] < c->restart ? e->rate[flow] : c->restart;
        link_leave(e, flow);
        e->state[flow] = ENDED;
        int32_t end = e->paths[flow].first + e->paths[flow].length;
        for (int32_t place = e->paths[flow].first; place < end; place++) {
            struct link *link = &e->links[e->route_link[place]];
            RESERVE(link->past, link->past_room, link->past_count + 1);
            link->past[link->past_count++] = flow;
        }
        e->past_references += e->paths[flow].length;
    }
}

/* Moves the flows of the smaller component into the larger. */
static struct component *merge(struct engine *e, struct component *a, struct component *b)
{
    if (a->count < b->count) {
        struct component *swap = a;
        a = b;
        b = swap;
    }
    for (int32_t i = 0; i < b->count; i++) component_add(e, a, b->flows[i]);
    a->lost += b->lost;
    b->count = 0;
    touch(e, b); /* empty now, so freed with the touched components */
    return a;
}

static void admit(struct engine *e, int32_t flow)
{
    struct component *c = component_new(e);
    component_add(e, c, flow);
    int32_t end = e->paths[flow].first + e->paths[flow].length;
    for (int32_t place = e->paths[flow].first; place < end; place++) {
        struct link *link = &e->links[e->route_link[place]];
        if (link->count && e->component[link->members[0].flow] != e->component[flow])
            merge(e, e->component[flow], e->component[link->members[0].flow]);
    }
    link_enter(e, flow);
    e->since[flow] = TICK_MIN;
    touch(e, e->component[flow]);
}

/* A flow whose rate does not change gets no new log entry: rule 3 of phantora_ns/sim/_flow_time.py.
 */
static void rate(struct engine *e, struct component *c, tick_t tick)
{
    fair_rates(e, c, tick);
    e->work += e->fresh_count;
    e->grown += e->fresh_count;
    for (int32_t i = 0; i < e->fresh_count; i++) {
        int32_t flow = e->fresh[i];
        double rate = e->paths[flow].rate;
        if (e->since[flow] == TICK_MIN) {
            e->left[flow] = e->flows[flow].size;
        } else {
            if (rate == e->rate[flow]) continue;
            if (e->since[flow] < e->point_now) log_push(e, flow);
            e->left[flow] = bytes_left(e->left[flow], e->rate[flow], tick - e->since[flow]);
        }
        e->since[flow] = tick;
        e->rate[flow] = rate;
        e->done[flow] = end_tick(tick, e->left[flow], rate);
    }
    schedule(e, c);
}

/* A component that has lost half of its flows is searched for connected parts. Each part is rated
 * as it is found. */
static void split(struct engine *e, struct component *c, tick_t tick)
{
    uint64_t stamp = ++e->stamp;
    RESERVE(e->found, e->found_room, c->count);
    while (c->count) {
        struct component *part = component_new(e);
        int64_t found = 0;
        e->found[found++] = c->flows[c->count - 1];
        component_remove(e, e->found[0]);
        component_add(e, part, e->found[0]);
        for (int64_t next = 0; next < found; next++) {
            int32_t flow = e->found[next], end = e->paths[flow].first + e->paths[flow].length;
            for (int32_t place = e->paths[flow].first; place < end; place++) {
                struct link *link = &e->links[e->route_link[place]];
                if (link->reach_stamp == stamp) continue;
                link->reach_stamp = stamp;
                for (int32_t i = 0; i < link->count; i++) {
                    int32_t near = link->members[i].flow;
                    if (e->component[near] != c) continue;
                    component_remove(e, near);
                    component_add(e, part, near);
                    e->found[found++] = near;
                }
            }
        }
        rate(e, part, tick);
    }
}

void run_step(struct engine *e)
{
    tick_t tick = next_tick(e);
    e->events_run++;
    e->point_now = restorable(e, tick);
    e->touched_count = 0;
    while (e->events.count && e->events.items[0].key == tick) {
        struct component *c = e->events.items[0].item;
        heap_remove(&e->events, 0);
        retire(e, c, tick);
        touch(e, c);
    }
    while (e->pending.count && e->pending.items[0].key == tick) {
        if (waits(e, &e->pending.items[0])) admit(e, (int32_t)(intptr_t)e->pending.items[0].item);
        heap_remove(&e->pending, 0);
    }
    while (e->changes.count && e->changes.items[0].key == tick) {
        const struct link *link = &e->links[(intptr_t)e->changes.items[0].item];
        heap_remove(&e->changes, 0);
        if (link->count) {
            touch(e, e->component[link->members[0].flow]);
            e->component[link->members[0].flow]->order_count = -1;
        }
    }
    for (int64_t i = 0; i < e->touched_count; i++) {
        struct component *c = e->touched[i];
        c->touched = false;
        if (c->count == 1 || c->lost * 2 < c->count)
            rate(e, c, tick);
        else
            split(e, c, tick);
        if (c->count == 0) component_free(e, c);
    }
    if (tick > e->now) e->now = tick;
    mark_point(e, tick);
    keep_budget(e);
}
