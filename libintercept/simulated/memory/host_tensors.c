/* simulated/memory/host_tensors.c - large tensors in host memory, and which of them are hollow.
 *
 * Why it exists: a model that is built on the CPU takes its whole size in every rank, though
 * nothing here ever depends on its values. PyTorch's large host tensors and pinned memory come from
 * one reserved range, so an address tells them apart from all other memory. Once a process holds
 * more than a budget of them, floats that operators write to large tensors are not kept: the pages
 * are given back and marked hollow (values/hollow.cpp does it). Rule: a hollow page reads as zero,
 * and whoever reads it can be told so.
 *
 * A block has a power of two of addresses. So freed addresses are found again without a search, and
 * cost nothing, because their pages have been given back. */
#define _GNU_SOURCE /* RTLD_NEXT, MAP_FIXED_NOREPLACE */
#include "simulated/memory/host_tensors.h"
#include "base/api.h"
#include "base/environment.h"
#include "base/fork.h"
#include "base/lookup.h"
#include "link/connection.h"
#include "simulated/values/defined.h"
#include "simulated/values/granules.h"
#include "time/host_clock.h"
#include "work/values_library.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BASE 0x400000000000ull
#define BYTES (1ull << 44)
enum { PAGE = 4096, PAGE_BITS = 64, UNIT_SHIFT = 20, CLASSES = 45 - UNIT_SHIFT };
/* A batch of data, tables and masks stay real in any process; a model does not fit. */
#define BUDGET (256ull << 20)

static struct free_list {
    uintptr_t *base;
    size_t count, room;
} freed[CLASSES];
static unsigned char *class_of; /* of each unit of 1 MiB where a block begins: class + 1 */
static size_t *bytes_of;        /* the size that was asked for, in the same places */
static _Atomic uint64_t *hollow, *touched; /* a bit per page; touched: the job has written there */
static uintptr_t next = BASE;
static uint64_t live;
static _Atomic bool active, forked;
static _Atomic uint64_t early_reads; /* before the process has joined the run */
static bool mapped;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;

/* A forked child, such as a worker of a data loader, keeps what it computes. */
static void keep_all(void)
{
    atomic_store(&forked, true);
    atomic_store(&active, false);
}

static bool wanted(void)
{
    const char *option = ph_env("PHANTORA_HOST_TENSORS");
    return option && strcmp(option, "auto") == 0;
}

static void map(void)
{
    if (!wanted()) return;
    void *at = mmap((void *)BASE, BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != (void *)BASE) { /* a limit on addresses: tensors take ordinary memory */
        if (at != MAP_FAILED) munmap(at, BYTES);
        return;
    }
    madvise(at, BYTES, MADV_NOHUGEPAGE); /* one written byte would cost 2 MiB */
    madvise(at, BYTES, MADV_DONTDUMP);
    class_of = ph_reserve(BYTES >> UNIT_SHIFT);
    bytes_of = ph_reserve((BYTES >> UNIT_SHIFT) * sizeof *bytes_of);
    hollow = ph_reserve(BYTES / PAGE / 8);
    touched = ph_reserve(BYTES / PAGE / 8);
    ph_forget_in_child(keep_all);
    mapped = true;
}

static int class_for(size_t bytes)
{
    int class = 0;
    while (((size_t)1 << UNIT_SHIFT << class) < bytes) class++;
    return class;
}

bool ph_host_is_block(const void *pointer) { return (uintptr_t)pointer - BASE < BYTES; }

static size_t unit_of(uintptr_t address) { return (address - BASE) >> UNIT_SHIFT; }

void *ph_host_block(size_t bytes)
{
    if (bytes < PH_HOST_LARGE || bytes > BYTES / 8) return NULL;
    pthread_once(&once, map);
    if (!mapped) return NULL;
    int class = class_for(bytes);
    size_t room = (size_t)1 << UNIT_SHIFT << class;
    uintptr_t at = 0;
    pthread_mutex_lock(&lock);
    if (freed[class].count) {
        at = freed[class].base[--freed[class].count];
    } else if (next + room <= BASE + BYTES) {
        at = next;
        next += room;
    }
    if (at) {
        class_of[unit_of(at)] = (unsigned char)(class + 1);
        bytes_of[unit_of(at)] = bytes;
        live += bytes;
        if (live > BUDGET && !atomic_load(&forked)) atomic_store(&active, true);
    }
    pthread_mutex_unlock(&lock);
    return (void *)at;
}

/* ---- which pages are hollow ---- */
static _Atomic uint64_t hollow_pages, peak_pages;

static void publish_peak(void)
{
    atomic_store_explicit(&ph_stats()->peak_hollow_bytes, atomic_load(&peak_pages) * PAGE,
                          memory_order_relaxed);
}

static size_t page_of(uintptr_t address) { return (address - BASE) / PAGE; }

/* Bits [from, to) of a word. */
static uint64_t bits_between(size_t from, size_t to)
{
    return (to == PAGE_BITS ? ~0ull : (1ull << to) - 1) & ~((1ull << from) - 1);
}

/* Where, in the word of page `first`, the pages up to `end` end. */
static size_t end_in_word(size_t first, size_t end)
{
    size_t left = end - first / PAGE_BITS * PAGE_BITS;
    return left < PAGE_BITS ? left : PAGE_BITS;
}

/* Returns by how many pages more have the bit. */
static int64_t mark_pages(_Atomic uint64_t *bits, size_t first, size_t end, bool value)
{
    int64_t more = 0;
    while (first < end) {
        size_t word = first / PAGE_BITS, to = end_in_word(first, end);
        uint64_t mask = bits_between(first % PAGE_BITS, to),
                 old = atomic_load_explicit(&bits[word], memory_order_relaxed);
        if (value && ~old & mask) {
            old = atomic_fetch_or_explicit(&bits[word], mask, memory_order_relaxed);
            more += __builtin_popcountll(mask & ~old);
        } else if (!value && old & mask) {
            old = atomic_fetch_and_explicit(&bits[word], ~mask, memory_order_relaxed);
            more -= __builtin_popcountll(mask & old);
        }
        first = word * PAGE_BITS + to;
    }
    return more;
}

/* The pages that lie wholly within a range; false: there is none. */
static bool whole_pages(const void *pointer, size_t bytes, uintptr_t *from, uintptr_t *end)
{
    *from = ((uintptr_t)pointer + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    *end = ((uintptr_t)pointer + bytes) & ~(uintptr_t)(PAGE - 1);
    return *from < *end;
}

static bool any_page(const _Atomic uint64_t *bits, const void *pointer, size_t bytes)
{
    if (!bytes || !ph_host_is_block(pointer) || !mapped) return false;
    size_t first = page_of((uintptr_t)pointer), end = page_of((uintptr_t)pointer + bytes - 1) + 1;
    while (first < end) {
        size_t word = first / PAGE_BITS, to = end_in_word(first, end);
        if (atomic_load_explicit(&bits[word], memory_order_relaxed) &
            bits_between(first % PAGE_BITS, to))
            return true;
        first = word * PAGE_BITS + to;
    }
    return false;
}

static void mark_hollow(size_t first, size_t end, bool value)
{
    int64_t more = mark_pages(hollow, first, end, value);
    uint64_t now = atomic_fetch_add(&hollow_pages, (uint64_t)more) + (uint64_t)more;
    if (more <= 0 || now <= atomic_load(&peak_pages)) return;
    atomic_store(&peak_pages, now);
    if (ph_touched()) publish_peak();
}

/* Marks the pages that lie wholly within a range. */
static void mark(const void *pointer, size_t bytes, bool is_hollow)
{
    uintptr_t from, end;
    if (!mapped || !ph_host_is_block(pointer) || !whole_pages(pointer, bytes, &from, &end)) return;
    mark_hollow(page_of(from), page_of(end), is_hollow);
    mark_pages(touched, page_of(from), page_of(end), true);
}

bool ph_host_any_hollow(const void *pointer, size_t bytes)
{
    return any_page(hollow, pointer, bytes);
}

void ph_host_clear(void *pointer, size_t bytes)
{
    uintptr_t from, end, last = (uintptr_t)pointer + bytes;
    if (!whole_pages(pointer, bytes, &from, &end)) {
        memset(pointer, 0, bytes);
        return;
    }
    memset(pointer, 0, from - (uintptr_t)pointer);
    madvise((void *)from, end - from, MADV_DONTNEED);
    memset((void *)end, 0, last - end);
}

void ph_host_written(const void *pointer, size_t bytes) { mark(pointer, bytes, false); }

void ph_host_block_free(void *pointer)
{
    uintptr_t at = (uintptr_t)pointer;
    size_t unit = unit_of(at), bytes = bytes_of[unit];
    int class = class_of[unit] - 1;
    size_t pages = (bytes + PAGE - 1) / PAGE;
    madvise(pointer, pages * PAGE, MADV_DONTNEED);
    pthread_mutex_lock(&lock);
    mark_hollow(page_of(at), page_of(at) + pages, false);
    mark_pages(touched, page_of(at), page_of(at) + pages, false);
    live -= bytes;
    struct free_list *list = &freed[class];
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        uintptr_t *larger = realloc(list->base, room * sizeof *larger);
        if (larger) list->base = larger, list->room = room;
    }
    /* without room the addresses are lost, and nothing else */
    if (list->count < list->room) list->base[list->count++] = at;
    class_of[unit] = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- the start ----
 *
 * PyTorch's own allocator takes memory from posix_memalign. A process's first tensor is where the
 * values library replaces that allocator. Only processes that will use a GPU are meant: a rank by
 * its environment, or one that has joined the run. Another one's values may matter. Each call asks
 * the environment again: scripts set RANK themselves, and the image of a warm start has none. */
typedef int (*memalign_type)(void **, size_t, size_t);
static memalign_type real_memalign;
static _Atomic bool begun;
__attribute__((constructor)) static void find_real(void)
{
    real_memalign = (memalign_type)ph_real_dlsym()(RTLD_NEXT, "posix_memalign");
}

void ph_host_joined(void)
{
    if (wanted()) ph_values_allocate();
    for (uint64_t reads = atomic_exchange(&early_reads, 0); reads; reads--)
        ph_count_undefined_read();
    publish_peak();
}

PH_API(int, posix_memalign, (void **pointer, size_t alignment, size_t bytes))
{
    enum { TORCH = 64 }; /* c10::gAlignment */
    if (!real_memalign) find_real();
    if (alignment == TORCH && !atomic_load_explicit(&begun, memory_order_relaxed) &&
        getenv("RANK") && wanted())
        atomic_store(&begun, ph_values_allocate());
    return real_memalign(pointer, alignment, bytes);
}

/* ---- for the values library ---- */
PH_API(void *, phantora_host_alloc, (size_t bytes)) { return ph_host_block(bytes); }
PH_API(void, phantora_host_free, (void *pointer)) { ph_host_block_free(pointer); }
PH_API(int, phantora_host_is_block, (const void *pointer)) { return ph_host_is_block(pointer); }
/* Whether large tensors of floats are hollow from here on. */
PH_API(int, phantora_host_hollows, (void))
{
    return atomic_load_explicit(&active, memory_order_relaxed);
}
PH_API(int, phantora_host_any_hollow, (const void *pointer, size_t bytes))
{
    return ph_host_any_hollow(pointer, bytes);
}
/* Whether memory is new to the job, so that its first write takes page faults on a real host.
 * Smaller blocks are kept by the C library (its mmap threshold is at most 32 MiB). */
PH_API(int, phantora_host_is_new, (const void *pointer, size_t bytes))
{
    return bytes > 32 << 20 && !any_page(touched, pointer, PAGE);
}
PH_API(void, phantora_host_hollow, (void *pointer, size_t bytes))
{
    ph_host_clear(pointer, bytes);
    mark(pointer, bytes, true);
}
PH_API(void, phantora_host_clear, (void *pointer, size_t bytes))
{
    ph_host_clear(pointer, bytes);
    mark(pointer, bytes, false);
}
PH_API(void, phantora_host_written, (const void *pointer, size_t bytes))
{
    ph_host_written(pointer, bytes);
}
PH_API(void, phantora_host_charge, (uint64_t ns))
{
    if (ph_in_chain()) ph_host_cost(ns);
}

/* Reads before the process joins the run are counted when it does. */
PH_API(void, phantora_host_read, (void))
{
    if (ph_touched())
        ph_count_undefined_read();
    else
        atomic_fetch_add_explicit(&early_reads, 1, memory_order_relaxed);
}
