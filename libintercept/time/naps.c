/* time/naps.c - the sleep of PyTorch's watchdogs between two rounds of polls.
 *
 * Why it exists: a watchdog sleeps for 100 ms of real time, or for a second. In a run that repeats,
 * its rounds follow simulated time, and its host stands still until each watchdog has done one
 * (time/watchdog.c). All other ranks wait for that host. So there a watchdog is woken when its turn
 * comes, and sleeps longer while it does not: its polls would say "not ready".
 *
 * How: libstdc++ takes an early wake for a spurious one, asks its clocks, and sleeps on. So for
 * this thread alone both clocks are ahead by what it has not slept. What a watchdog measures by
 * them is too long then. Its time-outs have a clock of their own (time/time_outs.c). */
#define _GNU_SOURCE /* dladdr, RTLD_NEXT */
#include "time/naps.h"
#include "base/api.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/lookup.h"
#include "base/real_time.h"
#include "time/host_clock.h"
#include "time/watchdog.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

enum { LONGEST_MS = 1000 };

typedef int (*wait_type)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

static pthread_mutex_t PH_FREE_IN_CHILD beds = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct {
    int64_t ahead;
    const void *site; /* the last caller that was looked at */
    bool torch;       /* whether it is in PyTorch's library of watchdogs */
} my;

int64_t ph_nap_ahead(void) { return my.ahead; }

/* The C library has two functions of this name. */
static wait_type real_wait(void)
{
    static _Atomic(wait_type) known;
    wait_type found = atomic_load_explicit(&known, memory_order_acquire);
    if (found) return found;
    found = (wait_type)ph_real_dlvsym()(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!found) ph_die("the C library has no pthread_cond_timedwait of version GLIBC_2.3.2");
    atomic_store_explicit(&known, found, memory_order_release);
    return found;
}

static bool called_by_torch(const void *site)
{
    if (my.site != site) {
        Dl_info found;
        my.site = site;
        my.torch = dladdr(site, &found) && strstr(found.dli_fname, "/libtorch_cuda.so");
    }
    return my.torch;
}

static int64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void ph_nap_end(struct ph_nap *nap)
{
    pthread_mutex_lock(&beds);
    if (atomic_load(&nap->asleep)) {
        atomic_store(&nap->woken, true);
        pthread_cond_broadcast(nap->bed);
    }
    pthread_mutex_unlock(&beds);
}

static int sleep_on(struct ph_nap *nap, pthread_cond_t *cond, pthread_mutex_t *mutex,
                    int64_t until_ns)
{
    /* The caller's deadline is by its own clock. */
    int64_t real_until_ns = until_ns - my.ahead, longest_ns = wall_ns() + LONGEST_MS * 1000000ll;
    if (longest_ns < real_until_ns) longest_ns = real_until_ns;
    struct timespec end = {longest_ns / 1000000000, longest_ns % 1000000000};
    pthread_mutex_lock(&beds);
    nap->bed = cond;
    atomic_store(&nap->woken, false);
    atomic_fetch_add(&nap->begun, 1);
    atomic_store(&nap->asleep, true);
    pthread_mutex_unlock(&beds);
    int error = real_wait()(cond, mutex, &end);
    pthread_mutex_lock(&beds);
    atomic_store(&nap->asleep, false);
    bool woken = atomic_load(&nap->woken);
    pthread_mutex_unlock(&beds);
    if (!woken) return error;
    int64_t left_ns = real_until_ns - wall_ns();
    if (left_ns > 0) my.ahead += left_ns;
    return ETIMEDOUT;
}

/* ---- what PyTorch calls ---- */
PH_API(int, pthread_cond_timedwait,
       (pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
        const struct timespec *restrict until))
{
    struct ph_nap *nap = NULL;
    if (ph_touched() && called_by_torch(__builtin_return_address(0))) nap = ph_watchdog_nap();
    if (!nap) return real_wait()(cond, mutex, until);
    return sleep_on(nap, cond, mutex, (int64_t)until->tv_sec * 1000000000 + until->tv_nsec);
}

/* std::chrono::system_clock::now() */
PH_API(int64_t, _ZNSt6chrono3_V212system_clock3nowEv, (void)) { return wall_ns() + my.ahead; }
