/* stale.c - which device memory holds values, and how tensors that are too large for values lose
 * them.
 *
 * Why it exists: a large tensor is to read as zero, but the caching allocator gives it memory in
 * which small tensors have left their bytes. Zeroing every large result would touch gigabytes, so a
 * bit per 64 KiB says where anything was ever written. Rule: a bit that is clear means zero; one
 * that is set may mean anything. */
#include "simulated/values/dirty.h"
#include "base/core.h"
#include "simulated/memory/ipc.h"
#include "simulated/values/defined.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, GRANULE_SHIFT = 16, WORD = 64 };
#define GRANULE ((uintptr_t)1 << GRANULE_SHIFT)
/* The two ranges of ph_is_device, one behind the other. */
#define WINDOW_GRANULES ((PH_WINDOW_END - PH_WINDOW_BASE) >> GRANULE_SHIFT)
#define VIRTUAL_GRANULES ((PH_VIRTUAL_END - PH_VIRTUAL_BASE) >> GRANULE_SHIFT)

/* 40 MiB of addresses; a page of memory for every 2 GiB of the window that is in use */
static _Atomic uint64_t *bits;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local const void *carried;

static void map_bits(void)
{
    size_t bytes = (WINDOW_GRANULES + VIRTUAL_GRANULES) / 8;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        ph_die("cannot reserve %zu MiB of addresses: %s", bytes >> 20, strerror(errno));
    bits = at;
}

static size_t granule_of(uintptr_t address)
{
    return address >= PH_WINDOW_BASE
               ? (address - PH_WINDOW_BASE) >> GRANULE_SHIFT
               : WINDOW_GRANULES + ((address - PH_VIRTUAL_BASE) >> GRANULE_SHIFT);
}

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

/* Most large results lie where nothing was ever written: that is to be found out at a glance, a
 * word for every 4 MiB. */
static bool any_written(uintptr_t low, uintptr_t high)
{
    size_t first = granule_of(low), last = granule_of(high - 1);
    for (size_t word = first / WORD; word <= last / WORD; word++) {
        uint64_t mask = ~0ull;
        if (word == first / WORD) mask &= ~0ull << first % WORD;
        if (word == last / WORD) mask &= ~0ull >> (WORD - 1 - last % WORD);
        if (atomic_load_explicit(&bits[word], memory_order_relaxed) & mask) return true;
    }
    return false;
}

bool ph_is_clean(const void *pointer, size_t bytes)
{
    if (bytes == 0 || !ph_is_device(pointer)) return false;
    pthread_once(&once, map_bits);
    return !any_written((uintptr_t)pointer, (uintptr_t)pointer + bytes);
}

static bool shared_now(uintptr_t low, uintptr_t high)
{
    return atomic_load_explicit(&ph_ipc_ranges, memory_order_relaxed) && ph_ipc_shared(low, high);
}

/* `whole`: the size of the tensor that loses its values. What is small enough for an index is
 * likely to be written again, for which the kernel would have to bring every page back; memory of
 * larger ones is given back. */
static void make_zero(uintptr_t from, uintptr_t to, size_t whole)
{
    uintptr_t first = (from + PAGE - 1) & ~(uintptr_t)(PAGE - 1),
              last = to & ~(uintptr_t)(PAGE - 1);
    if (whole <= PH_INDEX_BYTES || to - from < 4 * PAGE) {
        memset((void *)from, 0, to - from);
        return;
    }
    /* Whole pages of the window go back to the kernel and read as zero again. */
    memset((void *)from, 0, first - from);
    bool shared = shared_now(from, to); /* the pages are a file's, in which a hole reads as zero */
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
    if (!any_written(low, high)) return;
    bool shared = shared_now(low, high); /* then its bits stay: others write there, too */
    size_t first = granule_of(low), last = granule_of(high - 1);
    for (size_t at = first; at <= last; at++) {
        uint64_t word = atomic_load_explicit(&bits[at / WORD], memory_order_relaxed),
                 bit = 1ull << at % WORD;
        uintptr_t start = (low & ~(GRANULE - 1)) + (at - first) * GRANULE;
        if (word & bit) {
            if (!run) run = start < low ? low : start;
            /* no other tensor lies in it */
            if (!shared && start >= low && start + GRANULE <= high)
                atomic_fetch_and(&bits[at / WORD], ~bit);
            continue;
        }
        if (run) make_zero(run, start, bytes);
        run = 0;
        if (word == 0 && at % WORD == 0 && at + WORD <= last) at += WORD - 1;
    }
    if (run) make_zero(run, high, bytes);
}

void ph_discard(void *pointer, size_t bytes)
{
    ph_payload_drop(pointer, bytes);
    ph_zero(pointer, bytes);
}

void ph_keep_copied(const void *pointer) { carried = pointer; }

/* ---- for the values library ---- */
PH_API(void, phantora_values_mark_dirty, (const void *pointer, size_t bytes))
{
    ph_mark_dirty(pointer, bytes);
}

/* Whether bytes hold nothing, a result that is owed to them included. */
PH_API(int, phantora_values_is_clean, (const void *pointer, size_t bytes))
{
    ph_payload_settle(pointer, bytes);
    return ph_is_clean(pointer, bytes);
}

/* A copy begins: what it carries itself is to stay. */
PH_API(void, phantora_values_copy_begins, (void)) { carried = NULL; }

/* The result of an operator that was not run is too large for values. False: a copy has just
 * brought it some, which stay. */
PH_API(int, phantora_values_discard, (void *pointer, size_t bytes))
{
    if (pointer == carried) return carried = NULL, 0;
    ph_payload_drop(pointer, bytes);
    ph_mark_undefined(pointer, bytes);
    pthread_once(&once, map_bits);
    /* nearly always: no look at the clock */
    if (bytes == 0 || !any_written((uintptr_t)pointer, (uintptr_t)pointer + bytes)) return 1;
    ph_host_pause();
    ph_zero(pointer, bytes);
    ph_host_resume();
    return 1;
}
