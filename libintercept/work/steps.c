/* steps.c - tells the hub when an optimizer has stepped.
 *
 * Why it exists: a job's step is the unit that people compare, and only the job knows where it
 * ends. The values library sees PyTorch's mark of it in every run, traced or not. The moment is
 * sent as a time expression, as the host may be waiting for communication whose end only the hub
 * knows; so a mark waits for nothing, and moves no clock.
 *
 * `phantora-ns fit` needs the first steps alone. It cannot tell the job so, and to kill a rank
 * between two allocations would make the result depend on real time. So each rank waits at the end
 * of a step that the launcher names, until the launcher has looked. */
#include "base/api.h"
#include "base/environment.h"
#include "base/protocol.gen.h"
#include "link/connection.h"
#include "time/expression.h"
#include "time/gaps.h"
#include "time/host_clock.h"
#include "time/launch_queue.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* the step at whose end ranks wait; none when nobody says */
static uint64_t held_step(void)
{
    const char *path = ph_env("PHANTORA_HOLD");
    char text[24] = {0};
    int file = path && *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return UINT64_MAX;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 ? strtoull(text, NULL, 10) : UINT64_MAX;
}

static void count_step(void)
{
    struct ph_rank_stats *stats = ph_stats();
    static _Atomic uint64_t most_bytes;
    uint64_t peak = atomic_load_explicit(&stats->peak_driver_bytes, memory_order_relaxed);
    uint64_t step = atomic_load_explicit(&stats->steps, memory_order_relaxed) + 1;
    if (peak > atomic_load(&most_bytes)) {
        atomic_store(&most_bytes, peak);
        atomic_store_explicit(&stats->grown_step, step, memory_order_relaxed);
    }
    atomic_store_explicit(&stats->steps, step, memory_order_release);
    for (uint64_t wait; step >= (wait = held_step());) {
        atomic_store_explicit(&stats->held_step, wait, memory_order_release);
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, 5000000}, NULL);
    }
    atomic_store_explicit(&stats->held_step, 0, memory_order_relaxed);
}

/* The calling thread's CPU time is not the job's meanwhile: the caller has called
 * phantora_values_pause. */
PH_API(void, phantora_step_ended, (void))
{
    if (!ph_touched()) return;
    struct ph_pack body = {0};
    uint64_t vertex, busy_ns = 0, host_ns;
    int64_t offset;
    for (int source = 0; source < PH_SOURCES; source++)
        busy_ns += atomic_load_explicit(&ph_stats()->busy_ns[source], memory_order_relaxed);
    /* what calls cost is counted with --host-time auto and model */
    host_ns = atomic_load_explicit(&ph_stats()->host_cpu_ns, memory_order_relaxed) +
              atomic_load_explicit(&ph_stats()->host_ns[PH_HOST_LEVEL_CALL], memory_order_relaxed);
    pthread_mutex_lock(&ph_lock);
    ph_host_moment(&vertex, &offset);
    ph_pack_uint(&body, ph_clock());
    ph_extra_pack(&body, false, 0);
    ph_pack_array(&body, 3);
    ph_pack_uint(&body, vertex);
    ph_pack_uint(&body, offset > 0 ? (uint64_t)offset : 0);
    ph_pack_uint(&body, 0);
    ph_pack_uint(&body, busy_ns);
    ph_pack_uint(&body, host_ns);
    ph_pack_array(&body, PH_PRECISIONS);
    for (int precision = 0; precision < PH_PRECISIONS; precision++)
        ph_pack_uint(&body,
                     atomic_load_explicit(&ph_stats()->flop[precision], memory_order_relaxed));
    ph_send(PH_MESSAGE_STEP, &body, 6);
    ph_gaps_step_locked();
    pthread_mutex_unlock(&ph_lock);
    ph_pack_free(&body);
    count_step();
}
