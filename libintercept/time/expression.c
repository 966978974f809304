/* time/expression.c - the algebra of heads: max-plus expressions over nodes, and what this process
 * knows of the nodes.
 *
 * Why it exists: a head says max over entries of t(node) + lag + work. Nodes of this process: 0
 * (its origin), anchors (times that the hub has answered, known here), collective ends and
 * materialised heads (unknown here, bounded by `upper` and `lower`). Entries that can no longer
 * decide anything are dropped: an operation never starts before the host's clock, so an entry known
 * to lie at or before the clock is dominated. Rule: every function here is called with ph_lock
 * held. */
#include "time/expression.h"
#include "base/fork.h"
#include "time/host_clock.h"
#include <string.h>

enum { RING = 8192, HEAD_FULL = PH_HEAD_MAX - 2, LAUNCHES = 64 };

static uint64_t next_node = 1;
static struct ph_bound bounds[RING];
/* the lowest node that may still be named, when the next message shall say so */
static uint64_t keep;
static struct ph_pack pending_nodes, pending_stalls; /* the `extra` of the next message */
/* communication since the device was last idle: nodes */
static uint64_t launches[LAUNCHES], launch_count;
static uint32_t pending_node_count, pending_stall_count;

static void forget(void)
{
    memset(bounds, 0, sizeof bounds);
    next_node = 1;
    launch_count = 0;
    ph_pack_free(&pending_nodes), ph_pack_free(&pending_stalls);
    pending_node_count = pending_stall_count = 0;
}

/* ---- what is known of nodes ---- */
struct ph_bound *ph_bound(uint64_t node)
{
    struct ph_bound *slot = &bounds[node % RING];
    return slot->node == node ? slot : NULL;
}

void ph_expressions_start(void) { ph_forget_in_child(forget); }

uint64_t ph_node_new(uint64_t lower, uint64_t upper)
{
    uint64_t node = next_node++;
    bounds[node % RING] = (struct ph_bound){node, upper, lower, lower, 0};
    return node;
}

static uint64_t entry_upper(const struct ph_entry *entry)
{
    struct ph_bound *bound = ph_bound(entry->node);
    return bound && bound->upper != PH_UNKNOWN
               ? bound->upper + (uint64_t)(entry->lag + entry->work + entry->drag)
               : PH_UNKNOWN;
}

static uint64_t entry_lower(const struct ph_entry *entry)
{
    struct ph_bound *bound = ph_bound(entry->node);
    return (bound ? bound->lower : 0) + (uint64_t)(entry->lag + entry->work);
}

void ph_head_prune(struct ph_head *head, uint64_t time)
{
    int kept = 0;
    for (int i = 0; i < head->count; i++)
        if (entry_upper(&head->entry[i]) > time) head->entry[kept++] = head->entry[i];
    head->count = kept;
}

/* ---- heads ---- */
void ph_head_pack(struct ph_pack *pack, const struct ph_head *head)
{
    ph_pack_array(pack, (uint32_t)head->count * 3);
    for (int i = 0; i < head->count; i++) {
        ph_pack_uint(pack, head->entry[i].node);
        ph_pack_int(pack, head->entry[i].lag);
        if (head->entry[i].drag) ph_pack_array(pack, 2);
        ph_pack_int(pack, head->entry[i].work);
        if (head->entry[i].drag) ph_pack_int(pack, head->entry[i].drag);
    }
}

uint64_t ph_head_lower(const struct ph_head *head)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++)
        if (entry_lower(&head->entry[i]) > most) most = entry_lower(&head->entry[i]);
    return most;
}

uint64_t ph_head_upper(const struct ph_head *head)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++)
        if (entry_upper(&head->entry[i]) > most)
            most = entry_upper(&head->entry[i]); /* PH_UNKNOWN is the largest */
    return most;
}

uint64_t ph_head_floor(const struct ph_head *head)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++) {
        const struct ph_entry *entry = &head->entry[i];
        const struct ph_bound *bound = ph_bound(entry->node);
        uint64_t time = (bound ? bound->floor : 0) + (uint64_t)(entry->lag + entry->work);
        if (time > most) most = time;
    }
    return most;
}

/* What runs beside communication is stretched, and only the hub knows by how much. */
void ph_communicated(uint64_t node, uint64_t before)
{
    struct ph_bound *bound = ph_bound(node);
    if (bound) bound->before = before;
    if (launch_count < LAUNCHES) launches[launch_count] = node;
    launch_count++;
}

void ph_bound_above(struct ph_bound *bound, uint64_t upper)
{
    for (; bound && bound->upper > upper; bound = bound->before ? ph_bound(bound->before) : NULL)
        bound->upper = upper;
}

void ph_head_reached(const struct ph_head *head, uint64_t time)
{
    for (int i = 0; i < head->count; i++)
        ph_bound_above(ph_bound(head->entry[i].node),
                       time - (uint64_t)(head->entry[i].lag + head->entry[i].work));
}

void ph_all_over(uint64_t now)
{
    for (uint64_t node = next_node > RING ? next_node - RING : 0; node < next_node; node++) {
        struct ph_bound *bound = ph_bound(node);
        if (bound && bound->upper > now) bound->upper = now;
    }
    launch_count = 0;
}

/* Where one entry alone can be what lies beyond `now`, the floor is that entry's. */
void ph_head_not_before(const struct ph_head *head, uint64_t now, uint64_t floor)
{
    const struct ph_entry *only = NULL;
    for (int i = 0; i < head->count; i++) {
        if (entry_upper(&head->entry[i]) <= now) continue;
        if (only) return;
        only = &head->entry[i];
    }
    struct ph_bound *bound = only ? ph_bound(only->node) : NULL;
    uint64_t weight = only ? (uint64_t)(only->lag + only->work + only->drag) : 0;
    if (bound && floor > weight && floor - weight > bound->floor) bound->floor = floor - weight;
}

uint64_t ph_head_oldest(const struct ph_head *head, uint64_t otherwise)
{
    for (int i = 0; i < head->count; i++)
        if (head->entry[i].node < otherwise) otherwise = head->entry[i].node;
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

/* The head's time if it depends on nothing that the hub decides, else PH_UNKNOWN. Entries known to
 * lie in the past of `now` cannot decide it: the caller's own entry is at `now`. */
uint64_t ph_head_exact(const struct ph_head *head, uint64_t now)
{
    uint64_t most = 0;
    for (int i = 0; i < head->count; i++) {
        const struct ph_entry *entry = &head->entry[i];
        const struct ph_bound *bound = ph_bound(entry->node);
        if (entry_upper(entry) > now) {
            if (!bound || bound->upper != bound->lower) return PH_UNKNOWN;
            if (entry->drag && beside_communication(bound->upper + (uint64_t)entry->lag))
                return PH_UNKNOWN;
        }
        uint64_t time = bound ? bound->upper + (uint64_t)(entry->lag + entry->work) : 0;
        if (time > most && time != PH_UNKNOWN) most = time;
    }
    return most;
}

void ph_head_settle(struct ph_head *head)
{
    uint64_t time = ph_head_exact(head, 0);
    if (time == PH_UNKNOWN) return;
    head->count = 1;
    head->entry[0] = (struct ph_entry){0, (int64_t)time, 0, 0};
}

/* A head that grew long becomes a node of its own, defined by the next message. */
uint64_t ph_head_name(struct ph_head *head)
{
    uint64_t node = ph_node_new(ph_head_lower(head), ph_head_upper(head));
    ph_pack_array(&pending_nodes, 2);
    ph_pack_uint(&pending_nodes, node);
    ph_head_pack(&pending_nodes, head);
    pending_node_count++;
    head->count = 1;
    head->entry[0] = (struct ph_entry){node, 0, 0, 0};
    return node;
}

void ph_head_add(struct ph_head *head, struct ph_entry fresh)
{
    for (int i = 0; i < head->count; i++)
        if (head->entry[i].node == fresh.node) {
            if (fresh.lag + fresh.work > head->entry[i].lag + head->entry[i].work)
                head->entry[i] = fresh;
            return;
        }
    if (head->count >= HEAD_FULL) {
        uint64_t now = ph_clock();
        /* not what lies at the clock: it may be the host's own expression that is made */
        ph_head_prune(head, now ? now - 1 : 0);
        if (head->count >= HEAD_FULL) ph_head_name(head);
    }
    head->entry[head->count++] = fresh;
}

/* What the host waits for must not be earlier than any of it. Of two entries at one node neither
 * may be the later for sure: one is later as it stands, the other if communication stretches its
 * work. Then both stay. */
void ph_head_merge_all(struct ph_head *head, const struct ph_head *other)
{
    for (int i = 0; i < other->count; i++) {
        const struct ph_entry *fresh = &other->entry[i];
        int64_t least = fresh->lag + fresh->work, most = least + fresh->drag;
        bool covered = false;
        int kept = 0;
        for (int j = 0; j < head->count; j++) {
            const struct ph_entry *entry = &head->entry[j];
            bool same = entry->node == fresh->node;
            covered |= same && (entry->lag + entry->work >= most ||
                                memcmp(entry, fresh, sizeof *entry) == 0);
            if (!same || covered || entry->lag + entry->work + entry->drag > least)
                head->entry[kept++] = *entry;
        }
        head->count = kept;
        if (covered) continue;
        if (head->count >= HEAD_FULL) ph_head_name(head);
        head->entry[head->count++] = *fresh;
    }
}

void ph_head_merge(struct ph_head *head, const struct ph_head *other)
{
    for (int i = 0; i < other->count; i++) ph_head_add(head, other->entry[i]);
}

/* Nodes that are not anchors come from communication. */
bool ph_head_waits_for_more(const struct ph_head *head, const struct ph_head *event)
{
    for (int i = 0; i < event->count; i++) {
        struct ph_bound *bound = ph_bound(event->entry[i].node);
        if (bound && bound->upper == bound->lower) continue;
        bool known = false;
        for (int j = 0; j < head->count && !known; j++)
            known = head->entry[j].node == event->entry[i].node &&
                    head->entry[j].lag + head->entry[j].work >=
                        event->entry[i].lag + event->entry[i].work;
        if (!known) return true;
    }
    return false;
}

/* ---- what the next message defines ---- */
void ph_extra_stall(int device, const struct ph_head *before, const struct ph_head *after)
{
    ph_pack_array(&pending_stalls, 3);
    ph_pack_uint(&pending_stalls, (uint64_t)device);
    ph_head_pack(&pending_stalls, before);
    ph_head_pack(&pending_stalls, after);
    pending_stall_count++;
}

void ph_extra_keep(uint64_t node) { keep = node; }

void ph_extra_pack(struct ph_pack *body, bool beside)
{
    ph_pack_map(body, (pending_node_count > 0) + (pending_stall_count > 0) + beside + (keep > 0));
    if (keep) ph_pack_str(body, "keep"), ph_pack_uint(body, keep);
    keep = 0;
    if (beside) ph_pack_str(body, "beside"), ph_pack_uint(body, 1);
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

void ph_node_known(uint64_t node, uint64_t time)
{
    bounds[node % RING] = (struct ph_bound){node, time, time, time, 0};
}
