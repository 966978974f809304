/* time/watchdog.c - threads that only poll, such as NCCL's watchdog.
 *
 * Why it exists: the watchdog polls its work every 100 ms of real time, and then frees the tensors
 * (DDP's first bucket). On a GPU, a host that waits 300 ms leaves time for three polls. Here the
 * same wait may last a millisecond, and memory that would be free on a GPU would still be held
 * when the next step allocates. So a wait that is long in virtual time lets the watchdogs poll.
 *
 * In runs that repeat to the byte, the real time of a poll must not matter, because the memory
 * that it frees decides where later tensors lie. There the watchdogs get "not ready" except within
 * windows. A window opens every PERIOD_MS of virtual time, at the next wait or collective. The job
 * stands still in it until every watchdog has finished a whole round of polls. */
#include "time/watchdog.h"
#include "base/log.h"
#include "base/threads.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include <time.h>

enum {
    PERIOD_MS = 100 /* kWatchdogThreadSleepMillis in PyTorch's ProcessGroupNCCL */,
    QUIET_MS = 10,
    PATIENCE_MS = 300,
    OBSERVERS = 64
};
/* The first steps of a real job take half a second each, because libraries load and kernels are
 * tuned. So the watchdog has freed what those steps used before the later, shorter steps begin.
 * Here the first waits that could end a step therefore count as long from FIRST_WAIT_MS on. */
enum { FIRST_WAITS = 6, FIRST_WAIT_MS = 20 };

static struct observer {     /* one polling thread */
    _Atomic uint64_t rounds; /* rounds of polls that have begun */
    _Atomic bool waits;      /* something was not over in its last round, so it will poll again */
    _Atomic int looking, tid;
} observers[OBSERVERS];
static _Atomic unsigned observer_count;
static _Atomic uint64_t looks, rounds;
static _Atomic int looking;
static _Thread_local struct {
    struct observer *slot;
    uint64_t last_ns;
    const void *first;
} me;
/* for runs that repeat */
static _Atomic bool window;
static _Atomic uint64_t window_real_ns; /* real time at which the last window closed */

static uint64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* At its end PyTorch tells the watchdog to finish. From then on the watchdog polls its work without
 * a pause until all of it is over. That work may wait for another rank, and the hub answers that
 * rank only once this rank is idle. So the watchdog must sleep between its rounds here. */
static void pause_before_round(const void *work)
{
    if (me.first != work || real_ns() - me.last_ns > PERIOD_MS / 2 * 1000000ull) return;
    for (int i = 0; i <= PERIOD_MS / 2; i++) millisecond();
}

/* A round begins when the pause before this poll was as long as the watchdog's sleep. */
enum ph_look ph_watchdog_looks(const void *work)
{
    pause_before_round(work);
    uint64_t now = real_ns();
    if (!me.slot) {
        me.slot = &observers[atomic_fetch_add(&observer_count, 1) % OBSERVERS];
        atomic_store(&me.slot->tid, ph_thread_id());
    }
    if (now - me.last_ns > PERIOD_MS / 2 * 1000000ull) {
        atomic_store(&me.slot->waits, false);
        atomic_fetch_add(&me.slot->rounds, 1);
        atomic_fetch_add(&rounds, 1);
        me.first = NULL;
    }
    if (!me.first) me.first = work;
    atomic_store(&me.slot->looking, 1);
    atomic_fetch_add(&looking, 1);
    atomic_fetch_add(&looks, 1);
    /* The watchdog aborts a job when it has not seen its communication end for ten minutes of real
     * time. */
    enum { TOO_LONG_S = 120 };
    if (!ph_clock_repeats()) return PH_LOOK_AT_ONCE;
    if (atomic_load(&window)) return PH_LOOK_EXACTLY;
    uint64_t closed = 0;
    /* no window has closed yet */
    if (atomic_compare_exchange_strong(&window_real_ns, &closed, now)) closed = now;
    bool late = now > closed && now - closed > TOO_LONG_S * 1000000000ull;
    return late || ph_clock_stands_still() ? PH_LOOK_AT_ONCE : PH_LOOK_LATER;
}

void ph_watchdog_looked(bool over)
{
    me.last_ns = real_ns();
    if (over)
        me.first = NULL; /* this work is over; another one will be the first of the next round */
    else
        atomic_store(&me.slot->waits, true);
    atomic_fetch_sub(&looking, 1);
    atomic_store(&me.slot->looking, 0);
}

/* ---- windows ---- */
struct watched { /* one watchdog during a window */
    struct ph_watcher thread;
    uint64_t rounds, switches;
    int quiet; /* consecutive checks in which it slept and neither polled nor woke */
    bool over;
};

static struct observer *slot_of(int tid)
{
    unsigned count =
        atomic_load(&observer_count) < OBSERVERS ? atomic_load(&observer_count) : OBSERVERS;
    for (unsigned i = 0; i < count; i++)
        if (atomic_load(&observers[i].tid) == tid) return &observers[i];
    return NULL;
}

/* Whether the watchdog has done all that it can in this window. Either it has begun a round of
 * polls in the window and gone back to sleep. Or it has slept twice without a poll, so it has
 * nothing to poll. */
static bool has_seen(struct watched *watched)
{
    enum { LOOPS = 2 };
    const struct observer *slot = slot_of(watched->thread.tid);
    uint64_t switches = ph_thread_switches(watched->thread.tid),
             begun = slot ? atomic_load(&slot->rounds) : 0;
    bool still = switches == watched->switches && !(slot && atomic_load(&slot->looking)) &&
                 ph_thread_sleeps(watched->thread.tid);
    watched->switches = switches;
    watched->quiet = still ? watched->quiet + 1 : 0;
    if (switches == 0) return true; /* the thread has ended */
    return watched->quiet >= QUIET_MS &&
           (begun != watched->rounds || switches >= watched->thread.switches + LOOPS);
}

static void hold_window(void)
{
    enum { LONGEST_MS = 5000 };
    struct ph_watcher threads[OBSERVERS];
    struct watched watched[OBSERVERS];
    int count = ph_watchers(threads, OBSERVERS), open = count;
    for (int i = 0; i < count; i++) {
        struct observer *slot = slot_of(threads[i].tid);
        watched[i] = (struct watched){threads[i], slot ? atomic_load(&slot->rounds) : 0,
                                      threads[i].switches, 0, false};
    }
    atomic_store(&window, true);
    /* time in which a poll is under way does not count: it may wait for other ranks */
    for (int passed = 0; passed < LONGEST_MS && open; passed += !atomic_load(&looking)) {
        millisecond();
        for (int i = 0; i < count; i++)
            if (!watched[i].over && has_seen(&watched[i])) watched[i].over = true, open--;
    }
    atomic_store(&window, false);
    atomic_store(&window_real_ns, real_ns());
    if (open)
        ph_warn("NCCL's watchdog did not look for %d s: memory that it frees may be free at "
                "another time in the next run",
                LONGEST_MS / 1000);
}

static void window_if_due(uint64_t waited_ns)
{
    static uint64_t communicated, opened_at; /* only one thread of the chain runs at a time */
    static int times;
    uint64_t launched = atomic_load(&ph_stats()->comm_launches),
             now = atomic_load(&ph_stats()->clock_ns);
    bool due = now - opened_at >= PERIOD_MS * 1000000ull ||
               (times < FIRST_WAITS && waited_ns >= FIRST_WAIT_MS * 1000000ull);
    if (!due || launched == communicated || !ph_in_chain()) return;
    communicated = launched;
    opened_at = now;
    times++;
    /* The hub must not take this rank for idle: it is about to act. */
    atomic_store(&ph_stats()->blocked, 1);
    hold_window();
    atomic_store(&ph_stats()->blocked, 0);
}

void ph_watchdogs_due(void)
{
    if (ph_clock_repeats()) window_if_due(0);
}

/* ---- without windows ---- */
/* Only whole rounds count. A round that was under way when the clock moved has polled part of its
 * work too early. */
void ph_watchdogs_catch_up(uint64_t waited_ns)
{
    /* launches of communication at the last catch-up; without new ones there is nothing to poll */
    static uint64_t communicated;
    static int times;
    uint64_t before[OBSERVERS], any = atomic_load(&rounds),
                                launched = atomic_load(&ph_stats()->comm_launches);
    unsigned count =
        atomic_load(&observer_count) < OBSERVERS ? atomic_load(&observer_count) : OBSERVERS;
    if (ph_clock_repeats()) {
        window_if_due(waited_ns);
        return;
    }
    if (waited_ns < (times < FIRST_WAITS ? FIRST_WAIT_MS : PERIOD_MS) * 1000000ull || any == 0 ||
        launched == communicated)
        return;
    communicated = launched;
    times++;
    for (unsigned i = 0; i < count; i++)
        before[i] = atomic_load(&observers[i].waits) ? atomic_load(&observers[i].rounds) : 0;
    /* The hub must not take this rank for idle: it is about to act. */
    atomic_store(&ph_stats()->blocked, 1);
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
    atomic_store(&ph_stats()->blocked, 0);
}
