/* fill.c - max-min fair rates of a component, by progressive filling.
 *
 * Why it exists: it is the inner loop of the simulation. phantora_ns/sim/_flow_fill.py has the
 * rules that make the result a function of the flows alone, bit for bit. The floating point
 * operations here are the same. */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void sift_down(struct level_link *heap, int64_t count, int64_t at)
{
    struct level_link item = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1].share < heap[child].share) child++;
        if (item.share <= heap[child].share) break;
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

/* Finds the links that the component's flows cross. The list stays valid until another flow joins.
 */
static void find_links(struct engine *e, struct component *c)
{
    uint64_t stamp = ++e->stamp;
    c->link_count = 0;
    for (int32_t i = 0; i < c->count; i++) {
        const struct path *path = &e->paths[c->flows[i]];
        for (int32_t place = path->first; place < path->first + path->length; place++) {
            int32_t link = e->route_link[place];
            if (e->links[link].fill_stamp == stamp) continue;
            e->links[link].fill_stamp = stamp;
            RESERVE(c->links, c->link_room, c->link_count + 1);
            c->links[c->link_count++] = link;
        }
    }
}

/* Sets the capacity that a link has left when filling begins. It is the link's whole capacity, or
 * what the last kept level left of it. */
static void open_link(struct link *link, struct filling *filling, tick_t tick, double restart)
{
    while (link->level_count > 0 && link->levels[link->level_count - 1].level >= restart)
        link->level_count--;
    filling->taken = 0;
    if (link->level_count == 0) {
        filling->left = capacity_at(link, tick);
        filling->weight = link->weight;
        filling->share = filling->left / filling->weight;
        return;
    }
    struct level last = link->levels[link->level_count - 1];
    filling->left = last.left;
    filling->weight = link->weight - last.rated;
    filling->share = INFINITY;
    if (filling->weight > 0) {
        double share = filling->left / filling->weight;
        filling->share = share > last.level ? share : last.level;
    }
}

static int64_t gather_links(struct engine *e, struct component *c, tick_t tick, double restart)
{
    int64_t links = 0;
    if (c->link_count < 0) find_links(e, c);
    RESERVE(e->level_links, e->level_link_room, c->link_count);
    for (int32_t i = 0; i < c->link_count; i++) {
        struct link *link = &e->links[c->links[i]];
        struct filling *filling = &e->fillings[c->links[i]];
        if (link->count == 0 || e->component[link->members[0].flow] != c)
            continue; /* c's flows have left the link, and another component's may have come */
        open_link(link, filling, tick, restart);
        if (filling->share < INFINITY)
            e->level_links[links++] = (struct level_link){filling->share, c->links[i]};
    }
    for (int64_t i = links / 2; i-- > 0;) sift_down(e->level_links, links, i);
    return links;
}

static int64_t gather_caps(struct engine *e, const struct component *c)
{
    int64_t caps = 0;
    if (c->capped == 0) return 0;
    RESERVE(e->level_caps, e->level_cap_room, c->capped);
    for (int32_t i = 0; i < c->count; i++)
        if (e->paths[c->flows[i]].cap < INFINITY)
            e->level_caps[caps++] = (struct level_cap){e->paths[c->flows[i]].cap, c->flows[i]};
    qsort(e->level_caps, (size_t)caps, sizeof *e->level_caps, by_cap);
    return caps;
}

/* Subtracts the frozen flows' rates from their links. From then on, a link that no open flow
 * crosses has an infinite share. */
static void take(struct engine *e, double level, const int32_t *frozen, int32_t count, bool keep)
{
    int64_t touched = 0;
    for (int32_t i = 0; i < count; i++) {
        struct path *path = &e->paths[frozen[i]];
        path->rate = level;
        for (int32_t place = path->first; place < path->first + path->length; place++) {
            struct filling *filling = &e->fillings[e->route_link[place]];
            if (filling->taken == 0) e->level_touched[touched++] = e->route_link[place];
            filling->taken += path->weight > 0 ? path->weight : e->route_weight[place];
        }
    }
    for (int64_t i = 0; i < touched; i++) {
        struct filling *filling = &e->fillings[e->level_touched[i]];
        filling->left -= filling->taken * level;
        filling->weight -= filling->taken;
        filling->taken = 0;
        if (filling->weight > 0) {
            double share = filling->left / filling->weight;
            filling->share = share > level ? share : level;
        } else {
            filling->share = INFINITY;
        }
        if (keep) {
            struct link *link = &e->links[e->level_touched[i]];
            RESERVE(link->levels, link->level_room, link->level_count + 1);
            link->levels[link->level_count++] =
                (struct level){level, filling->left, link->weight - filling->weight};
        }
    }
}

/* Brings the top of the heap up to date. Keys in the heap may be outdated, and then they are too
 * low. Returns how many links remain. */
static int64_t renew_top(struct engine *e, int64_t links)
{
    struct level_link *heap = e->level_links;
    while (links > 0) {
        double share = e->fillings[heap[0].link].share;
        if (share == heap[0].share) break;
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
    struct path *path = &e->paths[flow];
    path->rate = path->cap;
    for (int32_t place = path->first; place < path->first + path->length; place++) {
        double share = capacity_at(&e->links[e->route_link[place]], tick) / e->route_weight[place];
        path->rate = share < path->rate ? share : path->rate;
    }
}

static void next_filling(struct engine *e)
{
    if (++e->filling != 0) return;
    memset(e->open, 0, (size_t)e->slot_room);
    e->filling = 1;
}

/* How many flows at the beginning of the order have rates below `restart`. */
static int32_t kept_flows(const struct engine *e, const struct component *c, double restart)
{
    int32_t low = 0, high = c->order_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (e->paths[c->order[middle]].rate < restart)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Opens the flows to be rated and returns how many others keep their rates.
 *
 * Suppose that flows have only left the component since it was last filled. Then the levels below
 * the lowest of their rates are unchanged, bit for bit. While a flow that left was there, its links
 * were above all these levels. Without it, each of these links shares the same remaining capacity
 * among fewer flows, so it is still above them. No other link has changed. So filling starts again
 * from there. */
static int32_t open_flows(struct engine *e, const struct component *c)
{
    int32_t kept = 0;
    next_filling(e);
    if (c->order_count < 0) {
        for (int32_t i = 0; i < c->count; i++) e->open[c->flows[i]] = e->filling;
        return 0;
    }
    kept = kept_flows(e, c, c->restart);
    for (int32_t i = kept; i < c->order_count; i++)
        if (e->component[c->order[i]] == c) e->open[c->order[i]] = e->filling;
    return kept;
}

/* Stores the rates in the paths, and points `fresh` to the flows that were rated anew. The cost is
 * O(E log L) for E entries over L links, if each level touches few links. E counts only what lies
 * above the level from which filling starts. */
void fair_rates(struct engine *e, struct component *c, tick_t tick)
{
    enum { KEEP_FROM = 32 };
    e->fresh = c->flows;
    e->fresh_count = c->count;
    if (c->count == 1) {
        fair_rate_of_one(e, c->flows[0], tick);
        return;
    }
    bool keep = c->count >= KEEP_FROM;
    int32_t kept = open_flows(e, c), rated = kept;
    int64_t links = gather_links(e, c, tick, c->order_count < 0 ? -INFINITY : c->restart);
    int64_t caps = gather_caps(e, c), cap = 0;
    if (keep)
        RESERVE(c->order, c->order_room, c->count);
    else
        RESERVE(e->frozen, e->frozen_room, c->count);
    int32_t *order = keep ? c->order : e->frozen;
    RESERVE(e->level_touched, e->level_touched_room, c->link_count);
    while (rated < c->count) {
        int32_t first = rated;
        links = renew_top(e, links);
        while (cap < caps && e->open[e->level_caps[cap].flow] != e->filling) cap++;
        double level = links > 0 ? e->level_links[0].share : INFINITY;
        if (cap < caps && e->level_caps[cap].cap < level) level = e->level_caps[cap].cap;
        while (links > 0 && e->level_links[0].share == level) {
            const struct link *link = &e->links[e->level_links[0].link];
            for (int32_t i = 0; i < link->count; i++) {
                int32_t flow = link->members[i].flow;
                if (e->open[flow] == e->filling) {
                    e->open[flow] = 0;
                    order[rated++] = flow;
                }
            }
            e->level_links[0] = e->level_links[--links];
            if (links > 0) sift_down(e->level_links, links, 0);
            links = renew_top(e, links);
        }
        for (; cap < caps && e->level_caps[cap].cap == level; cap++)
            if (e->open[e->level_caps[cap].flow] == e->filling) {
                e->open[e->level_caps[cap].flow] = 0;
                order[rated++] = e->level_caps[cap].flow;
            }
        if (rated == first) { /* the loop would otherwise never end */
            fprintf(stderr,
                    "phantora-ns: the flow simulator is broken: nothing froze at %g bytes/ns\n",
                    level);
            abort();
        }
        take(e, level, order + first, rated - first, keep);
    }
    c->order_count = keep ? c->count : -1;
    c->restart = INFINITY;
    e->fresh = order + kept;
    e->fresh_count = c->count - kept;
}
