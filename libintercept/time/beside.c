/* time/beside.c - whether compute will run beside a collective, foretold from the last time.
 *
 * Why it exists: compute beside a collective makes it longer, so OPS says whether there will be
 * any. When a collective is launched, most of the compute that will run beside it has not been
 * launched yet. But a training step repeats its launches: what came true of a launch is expected of
 * its next repetition.
 *
 * Rules: launches are repetitions when they and the two before them on the communicator are alike.
 * Compute ran beside one if work was queued beyond its begin before compute waited for it. Only
 * bounds that this process alone decides count, so the answer depends on nobody's timing. */
#include "time/beside.h"
#include "base/log.h"
#include <stdlib.h>

enum { PENDING = 64, MOST_KINDS = 256 };

struct kind {
    uint64_t key;
    bool beside;
};
struct ph_beside {
    uint64_t before[2]; /* what the last two launches were */
    uint32_t count, room;
    struct kind *kind;
};
/* launches of which is not known yet whether compute ran beside them */
static struct pending {
    struct ph_beside *of;
    uint64_t key, vertex, begin;
    int device;
} pending[PENDING];
static int pending_count;

void ph_beside_forget(void) { pending_count = 0; }

static struct kind *find(const struct ph_beside *known, uint64_t key)
{
    for (uint32_t i = 0; i < known->count; i++)
        if (known->kind[i].key == key) return &known->kind[i];
    return NULL;
}

static void remember(struct ph_beside *known, uint64_t key, bool beside)
{
    struct kind *kind = find(known, key);
    if (!kind) {
        if (known->count == MOST_KINDS) return;
        if (known->count == known->room) {
            known->room = known->room ? known->room * 2 : 8;
            known->kind = realloc(known->kind, known->room * sizeof *known->kind);
            if (!known->kind) ph_die("out of host memory");
        }
        kind = &known->kind[known->count++];
        kind->key = key;
    }
    kind->beside = beside;
}

static void drop(int index)
{
    pending_count--;
    for (int i = index; i < pending_count; i++) pending[i] = pending[i + 1];
}

void ph_beside_computed_locked(int device, uint64_t computed)
{
    for (int i = pending_count - 1; i >= 0; i--)
        if (pending[i].device == device && computed > pending[i].begin) {
            remember(pending[i].of, pending[i].key, true);
            drop(i);
        }
}

void ph_beside_waited_locked(int device, const struct ph_expr *event)
{
    uint64_t last = 0;
    for (int i = 0; i < event->count; i++)
        if (event->term[i].vertex > last) last = event->term[i].vertex;
    for (int i = pending_count - 1; i >= 0; i--)
        if (pending[i].device == device && pending[i].vertex <= last) {
            remember(pending[i].of, pending[i].key, false);
            drop(i);
        }
}

void ph_beside_over_locked(void)
{
    for (int i = 0; i < pending_count; i++) remember(pending[i].of, pending[i].key, false);
    pending_count = 0;
}

bool ph_beside_expected_locked(struct ph_beside **known, uint64_t what, int device, uint64_t vertex,
                               uint64_t begin, uint64_t computed)
{
    struct ph_beside *of = *known;
    if (!of && !(of = *known = calloc(1, sizeof *of))) ph_die("out of host memory");
    uint64_t key = (what * 31 + of->before[0]) * 31 + of->before[1];
    of->before[1] = of->before[0];
    of->before[0] = what;
    if (computed > begin) {
        remember(of, key, true);
        return true;
    }
    if (pending_count == PENDING) drop(0);
    pending[pending_count++] = (struct pending){of, key, vertex, begin, device};
    const struct kind *kind = find(of, key);
    return kind && kind->beside;
}

void ph_beside_free_locked(struct ph_beside *known)
{
    for (int i = pending_count - 1; i >= 0; i--)
        if (pending[i].of == known) drop(i);
    if (known) free(known->kind);
    free(known);
}
