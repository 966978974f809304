/* time/time_outs.c - the time-outs of PyTorch's NCCL communication count simulated time.
 *
 * Why it exists: PyTorch ends a job when communication has not ended within its time-out. It takes
 * both moments from libstdc++'s steady clock, which is real. On a busy machine the real time of a
 * collective may be many times the simulated one. So that clock is simulated where a work begins
 * and where its time-out is checked, and real for everybody else: waits for a time must stay real.
 * A host that polls sleeps between two polls, and that sleep is simulated time too.
 *
 * Rule: a watchdog sees no later clock than that up to which it knows all of its work. What has
 * ended by then must not count as late.
 *
 * When nothing in the job can go on (phantora_ns/hub/hang.py), the hub says so by a file in
 * RUN_DIR. While it is there, simulated time passes by itself, so that PyTorch reports the hang in
 * its own words. */
#define _GNU_SOURCE /* dladdr */
#include "time/time_outs.h"
#include "base/api.h"
#include "base/environment.h"
#include "base/real_time.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "time/naps.h"
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SITES = 512, FIRST_LOOK_MS = 1000, PASSING = 1000 };
/* FIRST_LOOK_MS: a watchdog of a job that hangs first sees what has ended. PASSING: how much faster
 * than real time a hang passes. */

enum caller { UNKNOWN, OTHER, BEGINS, CHECKS, SLEEPS };
static struct {
    _Atomic uintptr_t address;
    _Atomic int caller;
} sites[SITES];

static _Atomic int64_t hung_since;
static _Thread_local struct {
    uint64_t known;    /* up to this time it knew all of its work in the last round */
    uint64_t this_one; /* the same of the present round, so far */
    bool began;
} my;

static int64_t real_ns(void) { return (int64_t)ph_real_ns(); }

/* ---- who calls ---- */
/* PyTorch does not export all members of these classes. But its libraries keep the table that
 * debuggers read. It is read once for each call site. */
static bool find_name(const char *path, uintptr_t address, char *name, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat file;
    if (fd < 0 || fstat(fd, &file) != 0 || (size_t)file.st_size < sizeof(ElfW(Ehdr))) {
        if (fd >= 0) close(fd);
        return false;
    }
    size_t length = (size_t)file.st_size;
    const char *image = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (image == MAP_FAILED) return false;
    const ElfW(Ehdr) *header = (const void *)image;
    const ElfW(Shdr) *sections = (const void *)(image + header->e_shoff);
    bool found = false;
    size_t count = header->e_shoff + header->e_shnum * sizeof *sections <= length
                       ? header->e_shnum
                       : 0; /* the file is cut short */
    for (size_t i = 0; i < count && !found; i++) {
        if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= count) continue;
        const ElfW(Shdr) *names = &sections[sections[i].sh_link];
        if (sections[i].sh_offset + sections[i].sh_size > length ||
            names->sh_offset + names->sh_size > length)
            break;
        const ElfW(Sym) *symbols = (const void *)(image + sections[i].sh_offset);
        for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols && !found; j++) {
            const ElfW(Sym) *symbol = &symbols[j];
            if (address - symbol->st_value >= symbol->st_size || symbol->st_name >= names->sh_size)
                continue;
            snprintf(name, size, "%s", image + names->sh_offset + symbol->st_name);
            found = true;
        }
    }
    munmap((void *)image, length);
    return found;
}

static bool begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static enum caller read_caller(const void *address)
{
    static const struct {
        const char *name;
        enum caller caller;
    } members[] = {
        {"_ZN4c10d16ProcessGroupNCCL8WorkNCCLC", BEGINS},
        {"_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeout", CHECKS},
        /* from PyTorch 2.15 on */
        {"_ZN4c10d5nccl28WorkNCCL5StateC", BEGINS},
        {"_ZN4c10d5nccl28WorkNCCL5State11checkStatus", CHECKS},
        /* polls with a pause */
        {"_ZN4c10d16ProcessGroupNCCL8WorkNCCL19synchronizeInternal", SLEEPS},
        {"_ZN4c10d16ProcessGroupNCCL8WorkNCCL4wait", SLEEPS},
        {"_ZN4c10d5nccl28WorkNCCL4wait", SLEEPS},
    };
    Dl_info found;
    char name[256] = "";
    if (!dladdr(address, &found) || !strstr(found.dli_fname, "/libtorch_cuda.so")) return OTHER;
    if (found.dli_sname)
        snprintf(name, sizeof name, "%s", found.dli_sname);
    else if (!find_name(found.dli_fname, (uintptr_t)address - (uintptr_t)found.dli_fbase, name,
                        sizeof name))
        return OTHER;
    for (unsigned i = 0; i < sizeof members / sizeof *members; i++)
        if (begins_with(name, members[i].name)) return members[i].caller;
    return OTHER;
}

/* When the table is full, new call sites have the real clock. */
static enum caller caller_of(const void *address)
{
    uintptr_t key = (uintptr_t)address;
    for (unsigned i = 0, at = (key >> 2) % SITES; i < SITES; i++, at = (at + 1) % SITES) {
        uintptr_t there = 0;
        if (!atomic_compare_exchange_strong(&sites[at].address, &there, key) && there != key)
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

/* ---- what watchdogs know ---- */
bool ph_job_hangs(void)
{
    char path[512];
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    if (!run_dir) return false;
    snprintf(path, sizeof path, "%s/" PH_HANG_FILE, run_dir);
    if (access(path, F_OK) != 0) {
        atomic_store(&hung_since, 0);
        return false;
    }
    atomic_compare_exchange_strong(&hung_since, &(int64_t){0}, real_ns());
    return true;
}

void ph_time_out_round(void)
{
    if (my.began && my.this_one != UINT64_MAX && my.this_one > my.known) my.known = my.this_one;
    my.began = false;
}

void ph_time_out_looked(uint64_t not_before)
{
    if (!my.began || not_before < my.this_one) my.this_one = not_before;
    my.began = true;
}

static uint64_t checked_ns(void)
{
    uint64_t clock = atomic_load(&ph_stats()->clock_ns);
    if (ph_in_chain()) return clock;
    int64_t passed = 0;
    if (ph_job_hangs()) passed = real_ns() - atomic_load(&hung_since) - FIRST_LOOK_MS * 1000000ll;
    return passed > 0 ? clock + (uint64_t)passed * PASSING : my.known;
}

/* ---- what PyTorch calls ---- */
/* std::chrono::steady_clock::now() */
PH_API(int64_t, _ZNSt6chrono3_V212steady_clock3nowEv, (void))
{
    enum caller caller = ph_touched() ? caller_of(__builtin_return_address(0)) : OTHER;
    if (caller == BEGINS) return ph_touched_at() + (int64_t)atomic_load(&ph_stats()->clock_ns);
    if (caller == CHECKS) return ph_touched_at() + (int64_t)checked_ns();
    return real_ns() + ph_nap_ahead();
}

/* std::this_thread::sleep_for is this. */
PH_API(int, nanosleep, (const struct timespec *duration, struct timespec *left))
{
    if (ph_touched() && ph_in_chain() && caller_of(__builtin_return_address(0)) == SLEEPS)
        ph_host_pass((uint64_t)duration->tv_sec * 1000000000 + (uint64_t)duration->tv_nsec);
    int error = clock_nanosleep(CLOCK_REALTIME, 0, duration, left);
    if (error) errno = error;
    return error ? -1 : 0;
}
