/* dirty.c - a bitmap of the device memory that was ever written, and how large tensors lose old
 * values.
 *
 * Why it exists: a large tensor must read as zero, but the caching allocator gives it memory in
 * which small tensors have left their bytes. Zeroing every large result would touch gigabytes, so
 * one bit per 64 KiB says whether anything was written there. Rule: a clear bit means zero; a set
 * bit may mean anything. */
#include "simulated/values/dirty.h"
#include "base/log.h"
#include "base/memory.h"
#include "simulated/memory/ipc.h"
#include "simulated/memory/memory.h"
#include "simulated/values/defined.h"
#include "simulated/values/granules.h"
#include "simulated/values/payload.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

/* 40 MiB of addresses; one page of memory for every 2 GiB of the window in use */
static _Atomic uint64_t *bits;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local const void *copied;

void *ph_reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        ph_die("cannot reserve %zu MiB of addresses: %s", bytes >> 20, strerror(errno));
    return at;
}

static void map_bits(void) { bits = ph_reserve(BITMAP_BYTES); }

void ph_mark_dirty(const void *pointer, size_t bytes)
{
    if (bytes == 0 || !ph_is_device(pointer)) return;
    pthread_once(&once, map_bits);
    size_t last = granule_of((uintptr_t)pointer + bytes - 1);
    for (size_t at = granule_of((uintptr_t)pointer); at <= last; at++) {
        uint64_t bit = 1ull << at % WORD;
        if (!(atomic_load_explicit(&bits[at / WORD], memory_order_relaxed) & bit))
            atomic_fetch_or(&bits[at / WORD], bit);
    }
}

/* Most large results lie where nothing was ever written. One word per 4 MiB is enough to see that.
 */
static bool any_dirty(uintptr_t low, uintptr_t high)
{
    size_t first = granule_of(low), last = granule_of(high - 1);
    for (size_t word = first / WORD; word <= last / WORD; word++) {
        if (atomic_load_explicit(&bits[word], memory_order_relaxed) & word_mask(word, first, last))
            return true;
    }
    return false;
}

bool ph_is_clean(const void *pointer, size_t bytes)
{
    if (bytes == 0 || !ph_is_device(pointer)) return false;
    pthread_once(&once, map_bits);
    return !any_dirty((uintptr_t)pointer, (uintptr_t)pointer + bytes);
}

static bool shared_now(uintptr_t low, uintptr_t high)
{
    return atomic_load_explicit(&ph_ipc_ranges, memory_order_relaxed) && ph_ipc_shared(low, high);
}

/* `whole`: the size of the tensor that loses its values. Memory of a tensor small enough for an
 * index will probably be written again, and bringing its pages back costs time, so it is kept.
 * Memory of larger tensors goes back to the kernel. */
static void zero_run(uintptr_t from, uintptr_t to, size_t whole)
{
    uintptr_t first = (from + PAGE - 1) & ~(uintptr_t)(PAGE - 1),
              last = to & ~(uintptr_t)(PAGE - 1);
    if (whole <= PH_INDEX_BYTES || to - from < 4 * PAGE) {
        memset((void *)from, 0, to - from);
        return;
    }
    /* whole pages of the window go back to the kernel and read as zero again */
    memset((void *)from, 0, first - from);
    bool shared =
        shared_now(from, to); /* the pages belong to a file, in which a hole reads as zero */
    if (!shared)
        madvise((void *)first, last - first, MADV_DONTNEED);
    else if (madvise((void *)first, last - first, MADV_REMOVE))
        memset((void *)first, 0, last - first);
    memset((void *)last, 0, to - last);
}

void ph_zero(void *pointer, size_t bytes)
{
    uintptr_t low = (uintptr_t)pointer, high = low + bytes, run = 0;
    if (bytes == 0) return;
    pthread_once(&once, map_bits);
    if (!any_dirty(low, high)) return;
    bool shared = shared_now(low, high); /* other processes write there too, so its bits stay set */
    size_t first = granule_of(low), last = granule_of(high - 1);
    for (size_t at = first; at <= last; at++) {
        uint64_t word = atomic_load_explicit(&bits[at / WORD], memory_order_relaxed),
                 bit = 1ull << at % WORD;
        uintptr_t start = (low & ~(GRANULE - 1)) + (at - first) * GRANULE;
        if (word & bit) {
            if (!run) run = start < low ? low : start;
            /* no other tensor lies in this granule */
            if (!shared && start >= low && start + GRANULE <= high)
                atomic_fetch_and(&bits[at / WORD], ~bit);
            continue;
        }
        if (run) zero_run(run, start, bytes);
        run = 0;
        if (word == 0 && at % WORD == 0 && at + WORD <= last) at += WORD - 1;
    }
    if (run) zero_run(run, high, bytes);
}

void ph_discard(void *pointer, size_t bytes)
{
    ph_payload_drop(pointer, bytes);
    ph_zero(pointer, bytes);
}

void ph_keep_copied(const void *pointer) { copied = pointer; }

/* ---- for the values library ---- */
PH_API(void, phantora_values_mark_dirty, (const void *pointer, size_t bytes))
{
    ph_mark_dirty(pointer, bytes);
}

/* What neighbours wrote into a granule that they share with these bytes. */
static bool zero_where_shared(const char *pointer, size_t bytes)
{
    size_t before = -(uintptr_t)pointer & (GRANULE - 1),
           after = ((uintptr_t)pointer + bytes) & (GRANULE - 1);
    if (before + after >= bytes) return ph_all_zero(pointer, bytes);
    const char *last = pointer + bytes - after;
    return ph_is_clean(pointer + before, bytes - before - after) &&
           (before == 0 || ph_all_zero(pointer, before)) &&
           (after == 0 || ph_all_zero(last, after));
}

/* Whether bytes were never written. Pending results are delivered first. */
PH_API(int, phantora_values_is_clean, (const void *pointer, size_t bytes))
{
    ph_payload_settle(pointer, bytes);
    if (bytes == 0 || !ph_is_device(pointer)) return false;
    return ph_is_clean(pointer, bytes) || zero_where_shared(pointer, bytes);
}

/* A copy begins: the values that it brings must stay. */
PH_API(void, phantora_values_copy_begins, (void)) { copied = NULL; }

/* An operator was not run, and its result is too large for values. Returns 0 when a copy has just
 * brought values, which stay. */
PH_API(int, phantora_values_discard, (void *pointer, size_t bytes))
{
    if (pointer == copied) return copied = NULL, 0;
    ph_payload_drop(pointer, bytes);
    ph_mark_undefined(pointer, bytes);
    pthread_once(&once, map_bits);
    /* nearly always true; avoids reading the clock */
    if (bytes == 0 || !any_dirty((uintptr_t)pointer, (uintptr_t)pointer + bytes)) return 1;
    ph_host_pause();
    ph_zero(pointer, bytes);
    ph_host_resume();
    return 1;
}
