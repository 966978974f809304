/* observer.c - threads that only ever look, such as NCCL's watchdog.
 *
 * Why it exists: the watchdog looks at its work every 100 ms of real time and then lets go of the tensors (DDP's first bucket).
 * A host that waits 300 ms for its GPU gives it three looks; here the same wait may last a millisecond, and memory that is
 * free there would still be held when the next step allocates. So a wait that is long in virtual time lets the observers look. */
#include "timeline.h"
#include <time.h>

enum { PERIOD_MS = 100 /* kWatchdogThreadSleepMillis in PyTorch's ProcessGroupNCCL */, QUIET_MS = 3, PATIENCE_MS = 300 };

static _Atomic uint64_t looks;

void ph_observer_looked(void) { atomic_fetch_add(&looks, 1); }

static void millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

void ph_observers_catch_up(uint64_t waited_ns)
{
    static uint64_t communicated; /* launches at the last catching up: without new ones there is nothing to see */
    uint64_t before = atomic_load(&looks), launched = atomic_load(&ph_page()->comm_launches);
    if (waited_ns < PERIOD_MS * 1000000ull || before == 0 || launched == communicated) return;
    communicated = launched;
    atomic_store(&ph_page()->blocked, 1); /* about to act: not to be taken for idle */
    int quiet = 0;
    uint64_t seen = before;
    for (int i = 0; i < PATIENCE_MS && quiet < QUIET_MS; i++) {
        millisecond();
        uint64_t now = atomic_load(&looks);
        quiet = now != before && now == seen ? quiet + 1 : 0; /* one round of looks, and its end */
        seen = now;
    }
    atomic_store(&ph_page()->blocked, 0);
}
