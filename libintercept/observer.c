/* observer.c - threads that only ever look, such as NCCL's watchdog.
 *
 * Why it exists: the watchdog looks at its work every 100 ms of real time and then lets go of the tensors (DDP's first bucket).
 * A host that waits 300 ms for its GPU gives it three looks; here the same wait may last a millisecond, and memory that is
 * free there would still be held when the next step allocates. So a wait that is long in virtual time lets the observers look. */
#include "timeline.h"
#include <time.h>

enum { PERIOD_MS = 100 /* kWatchdogThreadSleepMillis in PyTorch's ProcessGroupNCCL */, QUIET_MS = 10, PATIENCE_MS = 300, OBSERVERS = 64 };
/* A real job's first steps take half a second each (libraries load, kernels are tuned) however short the later ones are, so there
 * the watchdog has let go of what they used. Here any wait that could be a step's end counts as long at first. */
enum { FIRST_WAITS = 6, FIRST_WAIT_MS = 20 };

static struct observer { /* one thread */
    _Atomic uint64_t rounds; /* of looks, begun */
    _Atomic bool waits;      /* in its last round something was not over: it will look again */
} observers[OBSERVERS];
static _Atomic unsigned observer_count;
static _Atomic uint64_t looks, rounds;
static _Atomic int looking;
static _Thread_local struct { struct observer *slot; uint64_t last_ns; } me;

static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* A round began when the pause before this look was of the watchdog's kind. */
void ph_observer_looks(void)
{
    uint64_t now = real_ns();
    if (!me.slot) me.slot = &observers[atomic_fetch_add(&observer_count, 1) % OBSERVERS];
    if (now - me.last_ns > PERIOD_MS / 2 * 1000000ull) {
        atomic_store(&me.slot->waits, false);
        atomic_fetch_add(&me.slot->rounds, 1);
        atomic_fetch_add(&rounds, 1);
    }
    atomic_fetch_add(&looking, 1);
    atomic_fetch_add(&looks, 1);
}

void ph_observer_looked(bool over)
{
    me.last_ns = real_ns();
    if (!over) atomic_store(&me.slot->waits, true);
    atomic_fetch_sub(&looking, 1);
}

static void millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* Whole rounds count: one that was under way when the clock moved has looked at a part of the work too early. */
void ph_observers_catch_up(uint64_t waited_ns)
{
    static uint64_t communicated; /* launches at the last catching up: without new ones there is nothing to see */
    static int times;
    uint64_t before[OBSERVERS], any = atomic_load(&rounds), launched = atomic_load(&ph_page()->comm_launches);
    unsigned count = atomic_load(&observer_count) < OBSERVERS ? atomic_load(&observer_count) : OBSERVERS;
    if (waited_ns < (times < FIRST_WAITS ? FIRST_WAIT_MS : PERIOD_MS) * 1000000ull || any == 0 || launched == communicated) return;
    communicated = launched;
    times++;
    for (unsigned i = 0; i < count; i++) before[i] = atomic_load(&observers[i].waits) ? atomic_load(&observers[i].rounds) : 0;
    atomic_store(&ph_page()->blocked, 1); /* about to act: not to be taken for idle */
    uint64_t seen = 0;
    for (int i = 0, quiet = 0; i < PATIENCE_MS && quiet < QUIET_MS; i++) {
        millisecond();
        uint64_t now = atomic_load(&looks);
        bool whole = atomic_load(&rounds) != any && atomic_load(&looking) == 0 && now == seen;
        for (unsigned j = 0; j < count; j++)
            if (before[j] && atomic_load(&observers[j].rounds) == before[j]) whole = false;
        quiet = whole ? quiet + 1 : 0;
        seen = now;
    }
    atomic_store(&ph_page()->blocked, 0);
}
