/* Max-min fair rates of a component, by progressive filling.
 *
 * Why it exists: the inner loop of the simulation. The rules by which the result is a function of the flows alone, bit for
 * bit, are in phantora_ns/sim/_flow_fill.py; the operations on floats here are the same ones. */
#include "engine.h"

#include <math.h>
#include <stdlib.h>

static void sift_down(struct level_link *heap, int64_t count, int64_t at)
{
    struct level_link item = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && heap[child + 1].share < heap[child].share)
            child++;
        if (item.share <= heap[child].share)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
}

static int by_cap(const void *a, const void *b)
{
    double x = ((const struct level_cap *)a)->cap, y = ((const struct level_cap *)b)->cap;
    return (x > y) - (x < y);
}

/* The links and caps of the component, ready for filling. */
static void gather(struct engine *e, const struct component *c, tick_t tick, int64_t *links, int64_t *caps)
{
    uint64_t stamp = ++e->stamp;
    *links = *caps = 0;
    for (int32_t i = 0; i < c->count; i++) {
        int32_t flow = c->flows[i], end = e->route[flow] + e->route_length[flow];
        e->rated[flow] = false;
        for (int32_t place = e->route[flow]; place < end; place++) {
            struct link *link = &e->links[e->route_link[place]];
            if (link->fill_stamp != stamp) {
                link->fill_stamp = stamp;
                link->left = capacity_at(link, tick);
                link->weight = link->taken = 0;
                RESERVE(e->level_links, e->level_link_room, *links + 1);
                e->level_links[(*links)++].link = e->route_link[place];
            }
            link->weight += e->route_weight[place];
        }
        if (e->cap[flow] < INFINITY) {
            RESERVE(e->level_caps, e->level_cap_room, *caps + 1);
            e->level_caps[(*caps)++] = (struct level_cap){e->cap[flow], flow};
        }
    }
    for (int64_t i = 0; i < *links; i++) {
        struct link *link = &e->links[e->level_links[i].link];
        e->level_links[i].share = link->share = link->left / link->weight;
    }
    for (int64_t i = *links / 2; i-- > 0;)
        sift_down(e->level_links, *links, i);
    if (*caps > 1)
        qsort(e->level_caps, (size_t)*caps, sizeof *e->level_caps, by_cap);
    RESERVE(e->frozen, e->frozen_room, c->count);
    RESERVE(e->level_touched, e->level_touched_room, *links);
}

static void freeze(struct engine *e, int32_t flow, double level, int64_t *frozen)
{
    e->rated[flow] = true;
    e->next_rate[flow] = level;
    e->frozen[(*frozen)++] = flow;
}

/* Charges the frozen flows' links; a link that no unrated flow crosses has share infinity from then on. */
static void take(struct engine *e, double level, int64_t frozen)
{
    int64_t touched = 0;
    for (int64_t i = 0; i < frozen; i++) {
        int32_t flow = e->frozen[i], end = e->route[flow] + e->route_length[flow];
        for (int32_t place = e->route[flow]; place < end; place++) {
            struct link *link = &e->links[e->route_link[place]];
            if (link->taken == 0)
                e->level_touched[touched++] = e->route_link[place];
            link->taken += e->route_weight[place];
        }
    }
    for (int64_t i = 0; i < touched; i++) {
        struct link *link = &e->links[e->level_touched[i]];
        link->left -= link->taken * level;
        link->weight -= link->taken;
        link->taken = 0;
        if (link->weight > 0) {
            double share = link->left / link->weight;
            link->share = share > level ? share : level;
        } else {
            link->share = INFINITY;
        }
    }
}

/* Keys in the heap may be old, hence too low: brings the top up to date. Returns how many links are left. */
static int64_t renew_top(struct engine *e, int64_t links)
{
    struct level_link *heap = e->level_links;
    while (links > 0) {
        double share = e->links[heap[0].link].share;
        if (share == heap[0].share)
            break;
        if (share == INFINITY)
            heap[0] = heap[--links];
        else
            heap[0].share = share;
        sift_down(heap, links, 0);
    }
    return links;
}

static void fair_rate_of_one(struct engine *e, int32_t flow, tick_t tick)
{
    double rate = e->cap[flow];
    int32_t end = e->route[flow] + e->route_length[flow];
    for (int32_t place = e->route[flow]; place < end; place++) {
        double share = capacity_at(&e->links[e->route_link[place]], tick) / e->route_weight[place];
        rate = share < rate ? share : rate;
    }
    e->next_rate[flow] = rate;
}

/* Leaves the rates in next_rate. O(E log L) when each level touches few links. */
void fair_rates(struct engine *e, const struct component *c, tick_t tick)
{
    if (c->count == 1) {
        fair_rate_of_one(e, c->flows[0], tick);
        return;
    }
    int64_t links, caps, cap = 0;
    gather(e, c, tick, &links, &caps);
    for (int32_t rated = 0; rated < c->count;) {
        int64_t frozen = 0;
        links = renew_top(e, links);
        while (cap < caps && e->rated[e->level_caps[cap].flow])
            cap++;
        double level = links > 0 ? e->level_links[0].share : INFINITY;
        if (cap < caps && e->level_caps[cap].cap < level)
            level = e->level_caps[cap].cap;
        while (links > 0 && e->level_links[0].share == level) {
            const struct link *link = &e->links[e->level_links[0].link];
            for (int32_t i = 0; i < link->count; i++)
                if (!e->rated[link->members[i].flow])
                    freeze(e, link->members[i].flow, level, &frozen);
            e->level_links[0] = e->level_links[--links];
            if (links > 0)
                sift_down(e->level_links, links, 0);
            links = renew_top(e, links);
        }
        for (; cap < caps && e->level_caps[cap].cap == level; cap++)
            if (!e->rated[e->level_caps[cap].flow])
                freeze(e, e->level_caps[cap].flow, level, &frozen);
        take(e, level, frozen);
        rated += (int32_t)frozen;
    }
}
