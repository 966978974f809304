/* time/gaps.c - how long compute will wait for communication, foretold from the last step.
 *
 * Why it exists: a kernel's clock follows the power of the tenth of a second before it
 * (time/power.c). A pipeline stage idles for as long between its busy phases. And compute slows
 * only that part of a collective that it runs beside. Work is issued before the hub knows when it
 * will run, but a training step repeats its waits.
 *
 * Rule: the n-th wait of a step takes as long as the n-th wait of the last step of which the hub
 * has told, and the n-th launch of communication is waited for as long. Both sides number the waits
 * of a process in the order in which it reports them, and only times that are final are told, so
 * runs repeat. */
#include "time/gaps.h"
#include <stdbool.h>
#include <string.h>

/* NUMBERED waits are remembered until the hub tells of them (its MOST_TOLD). */
enum { NUMBERED = 4096, MOST_PLACES = 8192, RECENT = 64 };

static uint64_t last_ns[MOST_PLACES]; /* by place in the step */
static uint16_t place_of[NUMBERED];   /* by number of the wait */
static uint64_t waits;
static uint32_t place;
static uint64_t waited_ns[MOST_PLACES]; /* by place of the launch in the step */
static uint16_t launch_of[NUMBERED];    /* by number of the wait: that place, from 1; 0: none */
static struct {
    uint64_t ns;
    int device;
} foretold[NUMBERED]; /* by number of the wait */
static struct {
    uint64_t vertex;
    uint32_t place;
} recent[RECENT];
static uint32_t launch_place, recent_count;
static bool marked; /* the end of a step was reported */

void ph_gaps_forget(void)
{
    memset(last_ns, 0, sizeof last_ns);
    memset(waited_ns, 0, sizeof waited_ns);
    memset(recent, 0, sizeof recent);
    memset(foretold, 0, sizeof foretold);
    waits = place = launch_place = 0;
    marked = false;
}

uint64_t ph_gaps_launch_locked(uint64_t vertex)
{
    if (launch_place == MOST_PLACES) return 0;
    recent[recent_count % RECENT].vertex = vertex;
    recent[recent_count++ % RECENT].place = launch_place;
    return waited_ns[launch_place++];
}

static uint16_t place_of_launch(uint64_t vertex)
{
    for (int i = 0; i < RECENT; i++)
        if (vertex && recent[i].vertex == vertex) return (uint16_t)(recent[i].place + 1);
    return 0;
}

uint64_t ph_gaps_expected_locked(int device, uint64_t launch)
{
    uint32_t here = place < MOST_PLACES ? place : MOST_PLACES - 1;
    launch_of[waits % NUMBERED] = place_of_launch(launch);
    place_of[waits % NUMBERED] = (uint16_t)here;
    place++;
    uint64_t expected = place < MOST_PLACES ? last_ns[here] : 0;
    foretold[waits % NUMBERED].ns = expected;
    foretold[waits++ % NUMBERED].device = device;
    return expected;
}

void ph_gaps_told_locked(struct ph_reply *reply, void (*longer)(int device, int64_t ns))
{
    uint64_t number = (uint64_t)ph_read_int(reply);
    for (uint32_t count = ph_read_array(reply); count > 0; count--, number++) {
        uint64_t ns = (uint64_t)ph_read_int(reply);
        if (number >= waits || number + NUMBERED < waits) continue;
        last_ns[place_of[number % NUMBERED]] = ns;
        longer(foretold[number % NUMBERED].device,
               (int64_t)ns - (int64_t)foretold[number % NUMBERED].ns);
        uint16_t launch = launch_of[number % NUMBERED];
        if (launch) waited_ns[launch - 1] = ns;
    }
}

void ph_gaps_step_locked(void)
{
    marked = true;
    place = launch_place = 0;
}

void ph_gaps_synchronized_locked(void)
{
    if (!marked) place = launch_place = 0;
}
