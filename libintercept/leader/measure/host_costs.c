/* host_costs.c - what calls of the real libraries cost the host, by class.
 *
 * Why it exists: simulated ranks charge each call's cost on their virtual clock
 * (time/host_clock.c). These costs are recorded where a real driver incurs them. Rule: a cost is
 * thread CPU time minus the cost of reading that clock, and is measured only in a process without
 * CUPTI. With CUPTI loaded, even with its activities off, a launch costs twice as much and the
 * record of an event five times as much (measured on an H200's host). */
#include "base/cpu_time.h"
#include "base/host_calls.h"
#include "leader/measure/measure.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static struct ph_distribution costs[PH_CALLS];
static pthread_mutex_t costs_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool recording;
static _Atomic uint64_t clock_cost;
static _Thread_local bool
    timing; /* calls that a library makes within a call are part of that call */

static int rising(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* ---- distributions ---- */
enum { KEPT = sizeof((struct ph_distribution *)0)->kept / sizeof(uint32_t) };

/* Reservoir sampling whose random numbers depend on the count alone: equal streams give equal
 * samples. */
void ph_distribution_add(struct ph_distribution *distribution, uint64_t value)
{
    uint64_t at = distribution->count++;
    if (at >= KEPT) {
        uint64_t x = at * 0x9e3779b97f4a7c15ull;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
        at = (x ^ x >> 32) % distribution->count;
    }
    if (at < KEPT) distribution->kept[at] = value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

void ph_distribution_read(const struct ph_distribution *distribution, uint64_t *mean,
                          uint64_t *median)
{
    enum { OUTLIER = 10 };
    uint32_t sorted[KEPT];
    size_t n = distribution->count < KEPT ? distribution->count : KEPT, used = 0;
    uint64_t sum = 0;
    *mean = *median = 0;
    if (!n) return;
    for (size_t i = 0; i < n; i++) sorted[i] = distribution->kept[i];
    qsort(sorted, n, sizeof *sorted, rising);
    *median = sorted[n / 2];
    while (used < n && sorted[used] <= OUTLIER * *median) sum += sorted[used++];
    *mean = used ? sum / used : *median;
}

/* ---- costs ---- */
static void calibrate(void)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 256; i++) {
        uint64_t start = ph_thread_cpu_ns(), cost = ph_thread_cpu_ns() - start;
        if (cost < least) least = cost;
    }
    atomic_store(&clock_cost, least);
}

void ph_cost_record(void)
{
    calibrate();
    atomic_store_explicit(&recording, true, memory_order_relaxed);
}

uint64_t ph_cost_start(enum ph_call class)
{
    (void)class;
    if (timing || !atomic_load_explicit(&recording, memory_order_relaxed)) return 0;
    timing = true;
    return ph_thread_cpu_ns();
}

void ph_cost_stop(enum ph_call class, uint64_t started)
{
    uint64_t cost = ph_thread_cpu_ns() - started,
             own = atomic_load_explicit(&clock_cost, memory_order_relaxed);
    timing = false;
    /* the driver spins: a longer synchronisation has waited for the GPU */
    enum { SPINNING_NS = 50000 };
    if (class == PH_CALL_SYNC && cost > SPINNING_NS) return;
    pthread_mutex_lock(&costs_lock);
    ph_distribution_add(&costs[class], cost > own ? cost - own : 0);
    pthread_mutex_unlock(&costs_lock);
}

void ph_cost_pack(struct ph_pack *pack)
{
    uint32_t classes = 0;
    pthread_mutex_lock(&costs_lock);
    for (int i = 0; i < PH_CALLS; i++) classes += costs[i].count > 0;
    ph_pack_array(pack, classes);
    for (int i = 0; i < PH_CALLS; i++) {
        uint64_t mean, median;
        if (!costs[i].count) continue;
        ph_distribution_read(&costs[i], &mean, &median);
        ph_pack_array(pack, 4);
        ph_pack_str(pack, ph_call_name((enum ph_call)i));
        ph_pack_uint(pack, costs[i].count);
        ph_pack_uint(pack, mean);
        ph_pack_uint(pack, median);
    }
    pthread_mutex_unlock(&costs_lock);
}
