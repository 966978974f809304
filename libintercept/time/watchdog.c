/* time/watchdog.c - threads that only poll, such as NCCL's watchdogs.
 *
 * Why it exists: the watchdog polls its work every 100 ms of real time, and then frees the tensors
 * (DDP's first bucket). On a GPU, a host that waits 300 ms leaves time for three polls. Here the
 * same wait may last a millisecond, and memory that would be free on a GPU would still be held
 * when the next step allocates. So a wait that is long in virtual time lets the watchdogs poll.
 *
 * In runs that repeat to the byte, the real time of a poll must not matter, because the memory
 * that it frees decides where later tensors lie. There the watchdogs get "not ready" except within
 * windows. A window opens every period of virtual time, at the next wait or collective. The job
 * stands still in it until every watchdog has finished a whole round of polls.
 *
 * PyTorch 2.15 has another process group, c10d::nccl2. Its watchdogs poll once a second and free no
 * tensors. But the host polls the same work before each collective, and skips what a watchdog has
 * seen to be over. So these rounds must not depend on real time either. */
#include "time/watchdog.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/real_time.h"
#include "base/threads.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "time/naps.h"
#include "time/time_outs.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum {
    PERIOD_MS = 100 /* kWatchdogThreadSleepMillis in PyTorch's ProcessGroupNCCL */,
    NCCL2_PERIOD_MS = 1000 /* how long c10d::nccl2's watchdog sleeps */,
    QUIET_MS = 10,
    PATIENCE_MS = 300,
    OBSERVERS = 256
};
/* The least time between two rounds in which a watchdog asks the hub whether its host waits for
 * long. In large jobs it is longer (ask_ms). */
enum { ASK_MS = 2000 };
/* The first steps of a real job take half a second each, because libraries load and kernels are
 * tuned. So the watchdog has freed what those steps used before the later, shorter steps begin.
 * Here the first waits that could end a step therefore count as long from FIRST_WAIT_MS on. */
enum { FIRST_WAITS = 6, FIRST_WAIT_MS = 20 };

static struct observer { /* one polling thread */
    _Atomic int tid;     /* 0: nobody */
    _Atomic bool nccl2;
    _Atomic uint64_t rounds; /* rounds of polls that have begun; of nccl2's: that have ended */
    _Atomic bool within;     /* nccl2's has polled since its last round ended */
    _Atomic bool waits;      /* something was not over in its last round, so it will poll again */
    _Atomic int looking;
    struct ph_nap nap;
} observers[OBSERVERS];
static _Atomic uint64_t looks, rounds; /* nccl2's rounds do not count */
static _Atomic int looking;
static _Thread_local struct {
    struct observer *slot;
    uint64_t last_ns;
    const void *first;
    uint64_t asked_ns; /* when it last began a round in which it asks whether the host waits long */
    bool asks;
    uint64_t naps; /* how often it had gone to sleep when its round began */
    enum { UNREAD, OTHER, WATCHDOG } name;
} me;
/* for runs that repeat: the watchdogs that may poll now, as bits */
static _Atomic unsigned window;

static void millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* At its end PyTorch tells the watchdog to finish. From then on the watchdog polls its work without
 * a pause until all of it is over. That work may wait for another rank, and the hub answers that
 * rank only once this rank is idle. So the watchdog must sleep between its rounds here. */
static void pause_before_round(const void *work)
{
    if (me.first != work || (me.slot && atomic_load(&me.slot->nap.begun) != me.naps) ||
        ph_real_ns() - me.last_ns > PERIOD_MS / 2 * 1000000ull)
        return;
    for (int i = 0; i <= PERIOD_MS / 2; i++) millisecond();
}

/* A watchdog whose process group nobody has destroyed goes on while the process ends. After the
 * destructors of torch's libraries its next poll throws. On a GPU these take less than the time
 * between two polls; on a busy machine they may not. So it polls no more, but not for ever:
 * somebody may wait for its end. */
enum { ENDING_MS = 3000 };
static _Atomic bool ending;
static void now_ending(void) { atomic_store(&ending, true); }

static void register_ending(void) { atexit(now_ending); }

/* The library that has the watchdogs is loaded. What is registered now runs before its destructors.
 */
void ph_watchdogs_expected(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_ending);
}

static void stop_if_ending(void)
{
    for (int i = 0; i < ENDING_MS && atomic_load(&ending); i++) millisecond();
}

/* Takes a slot that is free, or whose thread has ended. */
static struct observer *take_slot(void)
{
    for (int sweep = 0; sweep < 2; sweep++)
        for (struct observer *slot = observers; slot < observers + OBSERVERS; slot++) {
            int owner = atomic_load(&slot->tid);
            if (owner && (!sweep || !ph_thread_ended(owner))) continue;
            if (!atomic_compare_exchange_strong(&slot->tid, &owner, ph_thread_id())) continue;
            atomic_store(&slot->nccl2, false);
            atomic_store(&slot->within, false);
            atomic_store(&slot->waits, false);
            atomic_store(&slot->looking, 0);
            atomic_store(&slot->nap.begun, 0);
            atomic_store(&slot->nap.asleep, false);
            return slot;
        }
    ph_warn("more than %d threads poll: runs may not repeat", OBSERVERS);
    return &observers[OBSERVERS - 1];
}

static struct observer *my_slot(void)
{
    if (!me.slot) me.slot = take_slot();
    return me.slot;
}

/* All watchdogs of the job ask one hub. Those of 128 ranks, five each, kept it busy for a third of
 * its time. */
static uint64_t ask_ms(void)
{
    enum { FEW_RANKS = 16, LONGEST_MS = 30000 };
    static _Atomic uint64_t known;
    uint64_t ms = atomic_load(&known);
    if (ms) return ms;
    const char *world = getenv("WORLD_SIZE");
    ms = world ? strtoull(world, NULL, 10) * ASK_MS / FEW_RANKS : 0;
    ms = ms < ASK_MS ? ASK_MS : ms > LONGEST_MS ? LONGEST_MS : ms;
    atomic_store(&known, ms);
    return ms;
}

/* A round begins when the watchdog has slept since the last poll, or when the pause before this one
 * was as long as its sleep. */
static void begin_round(struct observer *slot, uint64_t now)
{
    me.naps = atomic_load(&slot->nap.begun);
    atomic_store(&slot->waits, false);
    me.first = NULL;
    ph_time_out_round();
    me.asks = now - me.asked_ns > ask_ms() * 1000000ull;
    if (me.asks) me.asked_ns = now;
    if (atomic_load(&slot->nccl2)) return;
    atomic_fetch_add(&slot->rounds, 1);
    atomic_fetch_add(&rounds, 1);
}

/* Whether the calling thread is a watchdog that PyTorch names. */
static bool is_named(void)
{
    if (!me.name) me.name = ph_watcher_by_name(ph_thread_id()) ? WATCHDOG : OTHER;
    return me.name == WATCHDOG;
}

struct ph_nap *ph_watchdog_nap(void)
{
    if (!ph_clock_repeats() || atomic_load(&ending) || ph_in_chain()) return NULL;
    if (!is_named() && !(me.slot && atomic_load(&me.slot->nccl2))) return NULL;
    return &my_slot()->nap;
}

enum ph_look ph_watchdog_looks(_Atomic uint64_t *put_off_ns)
{
    stop_if_ending();
    pause_before_round(put_off_ns);
    uint64_t now = ph_real_ns();
    struct observer *slot = my_slot();
    if (atomic_load(&slot->nap.begun) != me.naps || now - me.last_ns > PERIOD_MS / 2 * 1000000ull)
        begin_round(slot, now);
    if (!me.first) me.first = put_off_ns;
    atomic_store(&slot->within, true);
    atomic_store(&slot->looking, 1);
    atomic_fetch_add(&looking, 1);
    atomic_fetch_add(&looks, 1);
    /* The watchdog aborts a job when it has not seen its communication end for ten minutes of real
     * time. */
    enum { TOO_LONG_S = 120 };
    /* Other threads that poll, such as the DataLoader's that pins memory, have no windows: nobody
     * waits for them, so whether they poll within one would depend on real time. */
    unsigned mine = atomic_load(&slot->nccl2) ? 1u << PH_WATCHDOG_NCCL2
                    : is_named()              ? 1u << PH_WATCHDOG_NAMED
                                              : 0;
    enum ph_look look = PH_LOOK_LATER;
    uint64_t since = atomic_load(put_off_ns);
    if (!ph_clock_repeats() || ph_clock_stands_still() ||
        (since && now - since > TOO_LONG_S * 1000000000ull))
        look = PH_LOOK_AT_ONCE;
    if (ph_clock_repeats() && (atomic_load(&window) & mine)) look = PH_LOOK_EXACTLY;
    if (ph_job_hangs()) look = PH_LOOK_AT_ONCE;
    if (look != PH_LOOK_LATER || !since) atomic_store(put_off_ns, look == PH_LOOK_LATER ? now : 0);
    return look == PH_LOOK_LATER && mine && me.asks ? PH_LOOK_IF_LONG : look;
}

bool ph_watchdog_wait_is_long(uint64_t now, uint64_t until)
{
    me.asks = until > now + PERIOD_MS * 1000000ull;
    return me.asks;
}

void ph_watchdog_looked(bool over, uint64_t not_before)
{
    ph_time_out_looked(over ? UINT64_MAX : not_before);
    me.last_ns = ph_real_ns();
    if (over)
        me.first = NULL; /* this work is over; another one will be the first of the next round */
    else
        atomic_store(&me.slot->waits, true);
    atomic_fetch_sub(&looking, 1);
    atomic_store(&me.slot->looking, 0);
}

/* ---- nccl2's watchdogs ---- */
/* They have no name. But each sets its thread to this capture mode before its first round, and
 * keeps it to its end. The named ones set it for each poll alone. */
void ph_watchdog_captures_locally(bool begins)
{
    if (ph_in_chain() || (!begins && !me.slot)) return;
    if (is_named()) return;
    struct observer *slot = my_slot();
    bool began = atomic_exchange(&slot->nccl2, begins);
    if (begins || !began) return;
    me.slot = NULL;
    atomic_store(&slot->tid, 0);
}

/* At the end of each round it asks whether its communicator has failed. */
void ph_watchdog_asks_for_errors(void)
{
    if (!ph_in_chain()) stop_if_ending();
    if (!me.slot || !atomic_load(&me.slot->nccl2)) return;
    atomic_store(&me.slot->within, false);
    atomic_fetch_add(&me.slot->rounds, 1);
}

/* ---- windows ---- */
struct watched { /* one watchdog during a window */
    struct ph_watcher thread;
    struct observer *nccl2; /* its slot; NULL: it has a name */
    struct ph_nap *nap;     /* how it sleeps; NULL: by a call that is not ours */
    uint64_t naps;          /* once it has gone to sleep so often, it has done a round */
    uint64_t rounds, switches;
    int quiet; /* consecutive checks in which it slept and neither polled nor woke */
    bool over;
};

static struct observer *slot_of(int tid)
{
    for (unsigned i = 0; i < OBSERVERS; i++)
        if (atomic_load(&observers[i].tid) == tid) return &observers[i];
    return NULL;
}

/* Whether the watchdog has done all that it can in this window. Either it has begun a round of
 * polls in the window and gone back to sleep. Or it has slept twice without a poll, so it has
 * nothing to poll. */
static bool has_seen(struct watched *watched)
{
    enum { LOOPS = 2 };
    if (ph_thread_ended(watched->thread.tid)) return true;
    if (watched->nap && atomic_load(&watched->nap->begun) >= watched->naps) return true;
    if (watched->nap) {
        ph_nap_end(watched->nap);
        return false;
    }
    if (watched->nccl2)
        return atomic_load(&watched->nccl2->rounds) >= watched->rounds ||
               atomic_load(&watched->nccl2->tid) != watched->thread.tid;
    const struct observer *slot = slot_of(watched->thread.tid);
    uint64_t switches = ph_thread_switches(watched->thread.tid),
             begun = slot ? atomic_load(&slot->rounds) : 0;
    bool still = switches == watched->switches && !(slot && atomic_load(&slot->looking)) &&
                 ph_thread_sleeps(watched->thread.tid);
    watched->switches = switches;
    watched->quiet = still ? watched->quiet + 1 : 0;
    return watched->quiet >= QUIET_MS &&
           (begun != watched->rounds || switches >= watched->thread.switches + LOOPS);
}

static int find_named(struct watched *found)
{
    struct ph_watcher threads[OBSERVERS];
    int count = ph_watchers(threads, OBSERVERS);
    for (int i = 0; i < count; i++) {
        struct observer *slot = slot_of(threads[i].tid);
        found[i] = (struct watched){.thread = threads[i],
                                    .rounds = slot ? atomic_load(&slot->rounds) : 0,
                                    .switches = threads[i].switches};
    }
    return count;
}

/* Its window is open. One that sleeps does a whole round next. Any other may be at the end of a
 * round that began before. */
static void wake(struct watched *watched)
{
    struct observer *slot = watched->nccl2 ? watched->nccl2 : slot_of(watched->thread.tid);
    if (!slot || !atomic_load(&slot->nap.begun)) return;
    watched->nap = &slot->nap;
    bool asleep = atomic_load(&slot->nap.asleep);
    watched->naps = atomic_load(&slot->nap.begun) + (asleep ? 1 : 2);
    ph_nap_end(watched->nap);
}

/* Its window is open. One that sleeps between two rounds does a whole round next. Any other may be
 * at the end of a round that began before. */
static int find_nccl2(struct watched *found, int most)
{
    int count = 0, own = ph_thread_id();
    for (unsigned i = 0; i < OBSERVERS && count < most; i++) {
        struct observer *slot = &observers[i];
        int tid = atomic_load(&slot->tid);
        if (!tid || !atomic_load(&slot->nccl2) || tid == own) continue;
        uint64_t ended = atomic_load(&slot->rounds);
        bool between = ph_thread_sleeps(tid) && !atomic_load(&slot->within);
        found[count++] = (struct watched){
            .thread = {tid, 0}, .nccl2 = slot, .rounds = ended + (between ? 1 : 2)};
    }
    return count;
}

static void hold_window(unsigned kinds)
{
    enum { LONGEST_MS = 5000 };
    struct watched watched[OBSERVERS];
    int count = kinds & 1u << PH_WATCHDOG_NAMED ? find_named(watched) : 0;
    atomic_store(&window, kinds);
    if (kinds & 1u << PH_WATCHDOG_NCCL2) count += find_nccl2(watched + count, OBSERVERS - count);
    for (int i = 0; i < count; i++) wake(&watched[i]);
    int open = count;
    /* time in which a poll is under way does not count: it may wait for other ranks */
    for (int passed = 0; passed < LONGEST_MS && open; passed += !atomic_load(&looking)) {
        millisecond();
        for (int i = 0; i < count; i++)
            if (!watched[i].over && has_seen(&watched[i])) watched[i].over = true, open--;
    }
    atomic_store(&window, 0);
    if (open)
        ph_warn("NCCL's watchdog did not look for %d s: the next run may differ from this one",
                LONGEST_MS / 1000);
}

/* When watchdogs last had their turn. Several threads of the chain may wait at once. */
static pthread_mutex_t PH_FREE_IN_CHILD turns_lock = PTHREAD_MUTEX_INITIALIZER;

/* The windows of one sort of watchdogs. */
static struct windows {
    uint64_t period_ms, first_wait_ms; /* first_wait_ms: 0 if they free no tensors */
    uint64_t communicated, opened_at;
    int times;
} windows[PH_WATCHDOGS] = {
    [PH_WATCHDOG_NAMED] = {.period_ms = PERIOD_MS, .first_wait_ms = FIRST_WAIT_MS},
    [PH_WATCHDOG_NCCL2] = {.period_ms = NCCL2_PERIOD_MS},
};

/* collectives that launch nothing, which PyTorch hands to its watchdog nevertheless */
static _Atomic uint64_t unlaunched;
void ph_watchdogs_given_unlaunched(void) { atomic_fetch_add(&unlaunched, 1); }

/* how many collectives the watchdogs were given */
static uint64_t given(void)
{
    return atomic_load(&ph_stats()->comm_launches) + atomic_load(&unlaunched);
}

static bool is_due(struct windows *of, uint64_t waited_ns)
{
    uint64_t launched = given(), now = atomic_load(&ph_stats()->clock_ns);
    bool first =
        of->first_wait_ms && of->times < FIRST_WAITS && waited_ns >= of->first_wait_ms * 1000000ull;
    if (launched == of->communicated) return false;
    if (!first && now - of->opened_at < of->period_ms * 1000000ull) return false;
    of->communicated = launched;
    of->opened_at = now;
    of->times++;
    return true;
}

static void windows_if_due(unsigned kinds, uint64_t waited_ns)
{
    if (!ph_clock_repeats() || !ph_in_chain() || atomic_load(&ending)) return;
    pthread_mutex_lock(&turns_lock);
    for (int kind = 0; kind < PH_WATCHDOGS; kind++)
        if (kinds & 1u << kind && !is_due(&windows[kind], waited_ns)) kinds &= ~(1u << kind);
    pthread_mutex_unlock(&turns_lock);
    if (!kinds) return;
    /* The hub must not take this rank for idle: it is about to act. */
    atomic_store(&ph_stats()->blocked, 1);
    hold_window(kinds);
    atomic_store(&ph_stats()->blocked, 0);
}

void ph_watchdogs_due(enum ph_watchdog kind) { windows_if_due(1u << kind, 0); }

/* ---- without windows ---- */
/* nccl2's watchdogs free no tensors, so nobody waits for them. Only whole rounds count. A round
 * that was under way when the clock moved has polled part of its work too early. */
void ph_watchdogs_catch_up(uint64_t waited_ns)
{
    /* launches of communication at the last catch-up; without new ones there is nothing to poll */
    static uint64_t communicated;
    static int times;
    uint64_t before[OBSERVERS], any = atomic_load(&rounds), launched = given();
    if (ph_clock_repeats()) {
        windows_if_due((1u << PH_WATCHDOGS) - 1, waited_ns);
        return;
    }
    if (atomic_load(&ending)) return;
    pthread_mutex_lock(&turns_lock);
    bool due = waited_ns >= (times < FIRST_WAITS ? FIRST_WAIT_MS : PERIOD_MS) * 1000000ull && any &&
               launched != communicated;
    if (due) communicated = launched, times++;
    pthread_mutex_unlock(&turns_lock);
    if (!due) return;
    for (unsigned i = 0; i < OBSERVERS; i++)
        before[i] = atomic_load(&observers[i].waits) && !atomic_load(&observers[i].nccl2)
                        ? atomic_load(&observers[i].rounds)
                        : 0;
    /* The hub must not take this rank for idle: it is about to act. */
    atomic_store(&ph_stats()->blocked, 1);
    uint64_t seen = 0;
    for (int i = 0, quiet = 0; i < PATIENCE_MS && quiet < QUIET_MS; i++) {
        millisecond();
        uint64_t now = atomic_load(&looks);
        bool whole = atomic_load(&rounds) != any && atomic_load(&looking) == 0 && now == seen;
        for (unsigned j = 0; j < OBSERVERS; j++)
            if (before[j] && atomic_load(&observers[j].rounds) == before[j]) whole = false;
        quiet = whole ? quiet + 1 : 0;
        seen = now;
    }
    atomic_store(&ph_stats()->blocked, 0);
}
