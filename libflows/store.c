/* store.c - makes, links and frees flows, routes, components, heaps and logs.
 *
 * Why it exists: the simulation proper (run.c, history.c) should read as rules, not as bookkeeping.
 */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *grow_array(void *array, size_t size, int64_t count)
{
    void *grown = realloc(array, size * (size_t)count);
    if (grown == NULL) {
        fprintf(stderr,
                "phantora-ns: out of memory: the flow simulator needs %lld x %zu bytes; commit "
                "more often\n",
                (long long)count, size);
        abort();
    }
    return grown;
}

/* ---- heaps by tick ---- */

static void place(struct heap *heap, int64_t at, struct heap_item item)
{
    heap->items[at] = item;
    if (heap->tracked) ((struct component *)item.item)->heap_at = (int32_t)at;
}

static void sift(struct heap *heap, int64_t at, struct heap_item item)
{
    while (at > 0 && item.key < heap->items[(at - 1) / 2].key) {
        place(heap, at, heap->items[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && heap->items[child + 1].key < heap->items[child].key) child++;
        if (item.key <= heap->items[child].key) break;
        place(heap, at, heap->items[child]);
        at = child;
    }
    place(heap, at, item);
}

void heap_push(struct heap *heap, tick_t key, void *item)
{
    RESERVE(heap->items, heap->room, heap->count + 1);
    heap->count++;
    sift(heap, heap->count - 1, (struct heap_item){key, item});
}

void heap_remove(struct heap *heap, int64_t at)
{
    if (heap->tracked) ((struct component *)heap->items[at].item)->heap_at = -1;
    heap->count--;
    if (at < heap->count) sift(heap, at, heap->items[heap->count]);
}

void heap_rekey(struct heap *heap, int64_t at, tick_t key)
{
    sift(heap, at, (struct heap_item){key, heap->items[at].item});
}

/* ---- components ---- */

struct component *component_new(struct engine *e)
{
    struct component *c = e->spare_components;
    if (c != NULL)
        e->spare_components = (struct component *)(void *)c->flows;
    else
        c = grow_array(NULL, sizeof *c, 1);
    *c = (struct component){.flows = c->few,
                            .room = sizeof c->few / sizeof c->few[0],
                            .heap_at = -1,
                            .link_count = -1,
                            .order_count = -1};
    return c;
}

void component_free(struct engine *e, struct component *c)
{
    if (c->heap_at >= 0) heap_remove(&e->events, c->heap_at);
    if (c->flows != c->few) free(c->flows);
    free(c->links);
    free(c->order);
    c->flows = (int32_t *)(void *)e->spare_components;
    e->spare_components = c;
}

void component_add(struct engine *e, struct component *c, int32_t flow)
{
    if (c->count == c->room) {
        int32_t *flows =
            grow_array(c->flows == c->few ? NULL : c->flows, sizeof *flows, (int64_t)c->room * 2);
        if (c->flows == c->few) memcpy(flows, c->few, sizeof c->few);
        c->flows = flows;
        c->room *= 2;
    }
    c->link_count = c->order_count = -1;
    c->capped += e->paths[flow].cap < INFINITY;
    e->component[flow] = c;
    e->component_at[flow] = c->count;
    c->flows[c->count++] = flow;
}

void component_remove(struct engine *e, int32_t flow)
{
    struct component *c = e->component[flow];
    int32_t last = c->flows[--c->count];
    c->capped -= e->paths[flow].cap < INFINITY;
    c->flows[e->component_at[flow]] = last;
    e->component_at[last] = e->component_at[flow];
    e->component[flow] = NULL;
}

/* Puts the component into the heap of events by its first end. Removes it if it has no flows. */
void schedule(struct engine *e, struct component *c)
{
    tick_t next = TICK_MAX;
    for (int32_t i = 0; i < c->count; i++)
        if (e->done[c->flows[i]] < next) next = e->done[c->flows[i]];
    c->next = next;
    if (c->count == 0) {
        if (c->heap_at >= 0) heap_remove(&e->events, c->heap_at);
    } else if (c->heap_at < 0) {
        heap_push(&e->events, next, c);
    } else {
        heap_rekey(&e->events, c->heap_at, next);
    }
}

/* ---- flows and their routes ---- */

/* Blocks hold 1, 2, 3, 4, 6, 8, 12, 16, 24, ... entries, so that a freed block fits many later
 * routes. */
static int32_t block_size(int32_t length, int32_t *class)
{
    int32_t size = 1, next = 2;
    for (*class = 0; size < length; (*class)++) {
        int32_t after = size * 2;
        size = next;
        next = after > next ? after : size + size / 2;
    }
    return size;
}

static void route_new(struct engine *e, int32_t flow, int32_t length)
{
    int32_t class, size = block_size(length, &class);
    int32_t first = e->free_routes[class];
    if (first >= 0) {
        e->free_routes[class] = e->route_link[first];
    } else {
        first = e->route_used;
        if (first + size > e->route_room) {
            int64_t room = 2 * (int64_t)e->route_room + size;
            e->route_link = grow_array(e->route_link, sizeof *e->route_link, room);
            e->route_at = grow_array(e->route_at, sizeof *e->route_at, room);
            e->route_weight = grow_array(e->route_weight, sizeof *e->route_weight, room);
            e->route_room = (int32_t)room;
        }
        e->route_used += size;
    }
    e->paths[flow].first = first;
    e->paths[flow].length = length;
}

static void more_slots(struct engine *e)
{
    int64_t room = e->slot_room * 2 + 64;
    e->flows = grow_array(e->flows, sizeof *e->flows, room);
    e->state = grow_array(e->state, sizeof *e->state, room);
    e->open = grow_array(e->open, sizeof *e->open, room);
    memset(e->open + e->slot_room, 0, (size_t)(room - e->slot_room));
    e->paths = grow_array(e->paths, sizeof *e->paths, room);
    e->left = grow_array(e->left, sizeof *e->left, room);
    e->rate = grow_array(e->rate, sizeof *e->rate, room);
    e->since = grow_array(e->since, sizeof *e->since, room);
    e->done = grow_array(e->done, sizeof *e->done, room);
    e->component = grow_array(e->component, sizeof *e->component, room);
    e->component_at = grow_array(e->component_at, sizeof *e->component_at, room);
    e->slot_room = (int32_t)room;
}

/* Makes a flow with its route. If `links` names a link again, the link's entry gets more weight
 * instead of a second entry. */
int32_t flow_new(struct engine *e, const int32_t *links, int64_t count, double weight)
{
    if (e->free_count == 0 && e->slots == e->slot_room) more_slots(e);
    int32_t flow = e->free_count ? e->free_slots[--e->free_count] : e->slots++;
    uint64_t stamp = ++e->stamp;
    RESERVE(e->stack, e->stack_room, count);
    RESERVE(e->found, e->found_room, e->link_count);
    int32_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        struct link *link = &e->links[links[i]];
        if (link->reach_stamp != stamp) {
            link->reach_stamp = stamp;
            e->found[links[i]] = length;
            e->stack[length++] = links[i];
        }
    }
    route_new(e, flow, length);
    for (int32_t i = 0; i < length; i++) {
        e->route_link[e->paths[flow].first + i] = e->stack[i];
        e->route_weight[e->paths[flow].first + i] = 0;
    }
    for (int64_t i = 0; i < count; i++)
        e->route_weight[e->paths[flow].first + e->found[links[i]]] += weight;
    e->paths[flow].weight = length == count ? weight : 0;
    e->component[flow] = NULL;
    e->state[flow] = PENDING;
    e->flows[flow] = (struct flow){0};
    e->live_flows++;
    return flow;
}

void flow_free(struct engine *e, int32_t flow)
{
    int32_t class;
    block_size(e->paths[flow].length, &class);
    e->route_link[e->paths[flow].first] = e->free_routes[class];
    e->free_routes[class] = e->paths[flow].first;
    while (e->flows[flow].older != NULL) log_drop(e, &e->flows[flow].older);
    e->state[flow] = FREE;
    RESERVE(e->free_slots, e->free_room, e->free_count + 1);
    e->free_slots[e->free_count++] = flow;
    e->live_flows--;
}

int32_t group_new(struct engine *e)
{
    if (e->free_group_count == 0) RESERVE(e->groups, e->group_room, e->group_slots + 1);
    int32_t group = e->free_group_count ? e->free_groups[--e->free_group_count] : e->group_slots++;
    e->groups[group] = (struct group){.first = -1, .live = true, .latest = TICK_MIN};
    return group;
}

void group_join(struct engine *e, int32_t group, int32_t flow)
{
    e->flows[flow].group = group;
    e->flows[flow].next_member = e->groups[group].first;
    e->groups[group].first = flow;
}

void group_free(struct engine *e, int32_t group)
{
    e->groups[group].live = false;
    RESERVE(e->free_groups, e->free_group_room, e->free_group_count + 1);
    e->free_groups[e->free_group_count++] = group;
}

void link_enter(struct engine *e, int32_t flow)
{
    int32_t end = e->paths[flow].first + e->paths[flow].length;
    for (int32_t place_ = e->paths[flow].first; place_ < end; place_++) {
        struct link *link = &e->links[e->route_link[place_]];
        link->weight += e->route_weight[place_];
        RESERVE(link->members, link->room, link->count + 1);
        e->route_at[place_] = link->count;
        link->members[link->count++] = (struct member){flow, place_};
    }
    e->state[flow] = ACTIVE;
    e->active_flows++;
}

void link_leave(struct engine *e, int32_t flow)
{
    int32_t end = e->paths[flow].first + e->paths[flow].length;
    for (int32_t place_ = e->paths[flow].first; place_ < end; place_++) {
        struct link *link = &e->links[e->route_link[place_]];
        struct member last = link->members[--link->count];
        link->weight -= e->route_weight[place_];
        link->members[e->route_at[place_]] = last;
        e->route_at[last.place] = e->route_at[place_];
    }
    e->active_flows--;
}

double capacity_at(const struct link *link, tick_t tick)
{
    int32_t i = link->capacity_count - 1;
    while (link->capacities[i].since > tick) i--;
    return link->capacities[i].bytes_per_ns;
}

/* ---- logs ---- */

static void more_entries(struct engine *e)
{
    enum { CHUNK = 1024 };
    struct entry *chunk = grow_array(NULL, sizeof *chunk, CHUNK);
    RESERVE(e->entry_chunks, e->entry_chunk_room, e->entry_chunk_count + 1);
    e->entry_chunks[e->entry_chunk_count++] = chunk;
    for (int i = CHUNK; i-- > 0;) {
        chunk[i].older = e->spare_entries;
        e->spare_entries = &chunk[i];
    }
}

void log_push(struct engine *e, int32_t flow)
{
    if (e->spare_entries == NULL) more_entries(e);
    struct entry *entry = e->spare_entries;
    e->spare_entries = entry->older;
    *entry = (struct entry){e->since[flow], e->left[flow], e->rate[flow], e->flows[flow].older};
    e->flows[flow].older = entry;
    e->entries++;
}

/* Removes the entry at `*at` from its log. */
void log_drop(struct engine *e, struct entry **at)
{
    struct entry *entry = *at;
    *at = entry->older;
    entry->older = e->spare_entries;
    e->spare_entries = entry;
    e->entries--;
}

/* Restores the entry before the present state. */
void log_pop(struct engine *e, int32_t flow)
{
    const struct entry *entry = e->flows[flow].older;
    e->since[flow] = entry->since;
    e->left[flow] = entry->left;
    e->rate[flow] = entry->rate;
    log_drop(e, &e->flows[flow].older);
}

void result_add(struct engine *e, int32_t group, int64_t time_ns)
{
    RESERVE(e->results, e->result_room, e->result_count + 1);
    e->results[e->result_count++] = (struct result){group, time_ns};
}
