/* time/time_outs.c - the time-outs of PyTorch's NCCL watchdogs count simulated time.
 *
 * Why it exists: PyTorch ends a job when communication has not ended within its time-out. It takes
 * both moments from libstdc++'s steady clock, which is real. On a busy machine the real time of a
 * collective may be many times the simulated one. So that clock is simulated where a work begins
 * and where its time-out is checked, and real for everybody else: waits for a time must stay real.
 *
 * Rule: a watchdog sees no later clock than that at which it last looked at all of its work. What
 * has ended since then must not count as late.
 *
 * When nothing in the job can go on (phantora_ns/hub/hang.py), the hub says so by a file in
 * RUN_DIR. From then on simulated time passes by itself, so that PyTorch reports the hang in its
 * own words. */
#define _GNU_SOURCE /* dladdr */
#include "time/time_outs.h"
#include "base/api.h"
#include "base/environment.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SITES = 512, PASSING = 1000 /* how much faster than real time a hang passes */ };
/* What calls the clock: members of c10d::ProcessGroupNCCL::WorkNCCL. */
#define WORK "_ZN4c10d16ProcessGroupNCCL8WorkNCCL"

enum caller { UNKNOWN, OTHER, BEGINS, CHECKS };
static struct {
    _Atomic uintptr_t address;
    _Atomic int caller;
} sites[SITES];

static _Atomic uint64_t hung_since;
/* A watchdog's rounds. `looked_at`: the clock at the start of the last round that has ended and in
 * which every look got the truth. */
static _Thread_local struct {
    uint64_t looked_at, began_at;
    bool began, truth;
} my;

static int64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static enum caller read_caller(const void *address)
{
    Dl_info found;
    if (!dladdr(address, &found) || !found.dli_sname) return OTHER;
    const char *name = found.dli_sname;
    if (strncmp(name, WORK, strlen(WORK)) != 0) return OTHER;
    name += strlen(WORK);
    if (name[0] == 'C') return BEGINS;
    return strncmp(name, "12checkTimeout", strlen("12checkTimeout")) == 0 ? CHECKS : OTHER;
}

/* A call site's caller is looked up once. When the table is full, new ones have the real clock. */
static enum caller caller_of(const void *address)
{
    uintptr_t key = (uintptr_t)address;
    for (unsigned i = 0, at = (key >> 2) % SITES; i < SITES; i++, at = (at + 1) % SITES) {
        uintptr_t there = atomic_load(&sites[at].address);
        if (!there && !atomic_compare_exchange_strong(&sites[at].address, &there, key)) {
            if (there != key) continue;
        } else if (there && there != key)
            continue;
        int caller = atomic_load(&sites[at].caller);
        if (caller == UNKNOWN) {
            caller = (int)read_caller(address);
            atomic_store(&sites[at].caller, caller);
        }
        return (enum caller)caller;
    }
    return OTHER;
}

bool ph_job_hangs(void)
{
    if (atomic_load(&hung_since)) return true;
    char path[512];
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    if (!run_dir) return false;
    snprintf(path, sizeof path, "%s/" PH_HANG_FILE, run_dir);
    if (access(path, F_OK) != 0) return false;
    atomic_store(&hung_since, (uint64_t)real_ns());
    return true;
}

void ph_watchdog_round_begins(void)
{
    if (my.began && my.truth) my.looked_at = my.began_at;
    my.began = false;
}

void ph_watchdog_was_told(bool truth)
{
    if (!my.began) my.began_at = atomic_load(&ph_stats()->clock_ns);
    my.truth = truth && (my.truth || !my.began);
    my.began = true;
}

/* A watchdog of a job that hangs first sees, within a second, what has ended. */
static int64_t checked_ns(void)
{
    if (ph_in_chain()) return (int64_t)atomic_load(&ph_stats()->clock_ns);
    if (!ph_job_hangs()) return (int64_t)my.looked_at;
    int64_t passed = real_ns() - (int64_t)atomic_load(&hung_since) - 1000000000;
    if (passed <= 0) return (int64_t)my.looked_at;
    return (int64_t)atomic_load(&ph_stats()->clock_ns) + passed * PASSING;
}

/* std::chrono::steady_clock::now() */
PH_API(int64_t, _ZNSt6chrono3_V212steady_clock3nowEv, (void))
{
    enum caller caller = ph_touched() ? caller_of(__builtin_return_address(0)) : OTHER;
    if (caller == BEGINS) return ph_touched_at() + (int64_t)atomic_load(&ph_stats()->clock_ns);
    if (caller == CHECKS) return ph_touched_at() + checked_ns();
    return real_ns();
}
