/* time/untold.c - vertices whose times the hub has not told yet, and how long launches take at
 * least.
 *
 * Why it exists: PyTorch asks whether a collective is over as soon as it has launched it, and again
 * at each later one. The hub has told how long an equal launch takes at least, so the first
 * question is answered here. Whoever has to ask the hub asks for the oldest untold vertices too:
 * the next questions are about these.
 *
 * Rule: this only saves requests. The hub would give the same answers. */
#include "time/untold.h"
#include "base/fork.h"
#include "base/hash_map.h"
#include "time/expression.h"
#include <stdbool.h>
#include <string.h>

enum {
    UNTOLD = 64,
    MOST = 4096 /* kinds of launches */
};
static struct untold {
    uint64_t vertex, alike;
} untold[UNTOLD]; /* oldest first */
static uint32_t count;
static struct ph_hash_map least; /* by `alike` */

static void forget(void)
{
    count = 0;
    least = (struct ph_hash_map){0}; /* another thread may have been in it */
}

void ph_untold_start(void) { ph_forget_in_child(forget); }

static bool known(uint64_t vertex, uint64_t now)
{
    const struct ph_bound *bound = ph_bound(vertex);
    return !bound || bound->told || bound->aborted || bound->upper <= now;
}

static void drop_known(uint64_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!known(untold[i].vertex, now)) untold[kept++] = untold[i];
    count = kept;
}

static void add(uint64_t vertex, uint64_t alike)
{
    if (count == UNTOLD) drop_known(0);
    if (count == UNTOLD) memmove(untold, untold + 1, --count * sizeof *untold);
    untold[count++] = (struct untold){vertex, alike};
}

void ph_untold_add(uint64_t vertex) { add(vertex, 0); }

void ph_untold_launch(uint64_t vertex, uint64_t begin, uint64_t alike)
{
    struct ph_bound *bound = ph_bound(vertex);
    uint64_t ns = alike ? ph_hash_map_get(&least, alike) : 0;
    if (bound && begin + ns > bound->floor) bound->floor = begin + ns;
    add(vertex, alike);
}

void ph_untold_least(uint64_t vertex, uint64_t ns)
{
    for (uint32_t i = 0; i < count && ns; i++)
        if (untold[i].vertex == vertex && untold[i].alike && least.used < MOST)
            ph_hash_map_put(&least, untold[i].alike, ns);
}

uint32_t ph_untold_oldest(uint64_t *vertices, uint32_t room, uint64_t now)
{
    drop_known(now);
    uint32_t found = count < room ? count : room;
    for (uint32_t i = 0; i < found; i++) vertices[i] = untold[i].vertex;
    return found;
}
