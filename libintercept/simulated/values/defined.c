/* defined.c - which bytes of device memory hold values that were computed or written.
 *
 * Why it exists: a zero byte may be a value or the lack of one, and both the report and the policy
 * of --values must tell them apart. PyTorch's allocator reuses memory, so each block becomes
 * undefined, and zero, when it is handed out. A copy from the host, a fill, a collective, or an
 * operator that ran on the CPU makes its bytes defined.
 *
 * Two bits per 64 KiB say whether all, none or some of it is undefined. Only in the last case is
 * there one bit per byte. So marking a tensor of gigabytes writes a few hundred words. */
#include "base/fork.h"
#include "simulated/values/defined.h"
#include "base/api.h"
#include "base/environment.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "simulated/memory/holders.h"
#include "simulated/memory/memory.h"
#include "simulated/values/dirty.h"
#include "simulated/values/granules.h"
#include "simulated/values/payload.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define DETAIL (GRANULE / 8) /* bytes of detail for a granule */

/* Reserved only: pages appear when they are written. `detail` is valid only where `some` is set. */
static _Atomic uint64_t *all, *some;
static unsigned char *window_detail, *virtual_detail;
static pthread_once_t once = PTHREAD_ONCE_INIT, virtual_once = PTHREAD_ONCE_INIT;
/* taken by changes only; a look-up need not see concurrent changes to other tensors */
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;

static void map(void)
{
    some = ph_reserve(BITMAP_BYTES);
    window_detail = ph_reserve(WINDOW_GRANULES * DETAIL);
    all = ph_reserve(BITMAP_BYTES);
}
static void map_virtual(void) { virtual_detail = ph_reserve(VIRTUAL_GRANULES * DETAIL); }

static unsigned char *detail_of(size_t granule)
{
    if (granule < WINDOW_GRANULES) return window_detail + granule * DETAIL;
    pthread_once(&virtual_once, map_virtual);
    return virtual_detail + (granule - WINDOW_GRANULES) * DETAIL;
}

static bool get(const _Atomic uint64_t *bits, size_t at)
{
    return atomic_load_explicit(&bits[at / WORD], memory_order_relaxed) >> at % WORD & 1;
}
static void put(_Atomic uint64_t *bits, size_t word, uint64_t mask, bool value)
{
    uint64_t old = atomic_load_explicit(&bits[word], memory_order_relaxed),
             fresh = value ? old | mask : old & ~mask;
    if (fresh != old) atomic_store_explicit(&bits[word], fresh, memory_order_release);
}

/* Bits [from, to) of a granule's detail. */
static void fill(unsigned char *detail, size_t from, size_t to, bool value)
{
    for (; from < to && from % 8; from++)
        detail[from / 8] =
            (unsigned char)((detail[from / 8] & ~(1u << from % 8)) | (unsigned)value << from % 8);
    if (from < to) memset(detail + from / 8, value ? 0xff : 0, (to - from) / 8);
    for (from += (to - from) / 8 * 8; from < to; from++)
        detail[from / 8] =
            (unsigned char)((detail[from / 8] & ~(1u << from % 8)) | (unsigned)value << from % 8);
}

static bool any(const unsigned char *detail, size_t from, size_t to)
{
    for (; from < to && from % 8; from++)
        if (detail[from / 8] >> from % 8 & 1) return true;
    size_t bytes = from < to ? (to - from) / 8 : 0;
    if (bytes &&
        (detail[from / 8] || memcmp(detail + from / 8, detail + from / 8 + 1, bytes - 1) != 0))
        return true;
    from += bytes * 8;
    for (; from < to; from++)
        if (detail[from / 8] >> from % 8 & 1) return true;
    return false;
}

static void set_part(size_t granule, size_t from, size_t to, bool undefined)
{
    uint64_t mask = 1ull << granule % WORD;
    bool whole = get(all, granule);
    if (whole ? undefined : !undefined && !get(some, granule)) return; /* already so */
    unsigned char *detail = detail_of(granule);
    if (!get(some, granule)) memset(detail, whole ? 0xff : 0, DETAIL);
    fill(detail, from, to, undefined);
    put(some, granule / WORD, mask, true);
    put(all, granule / WORD, mask, false); /* last: a concurrent look-up finds one of the two set */
}

static void set(const void *pointer, size_t bytes, bool undefined)
{
    if (bytes == 0 || !ph_is_device(pointer)) return;
    pthread_once(&once, map);
    uintptr_t low = (uintptr_t)pointer, high = low + bytes;
    size_t first = granule_of(low), last = granule_of(high - 1);
    size_t head = low & (GRANULE - 1), tail = ((high - 1) & (GRANULE - 1)) + 1;
    pthread_mutex_lock(&lock);
    if (first == last && tail - head < GRANULE) {
        set_part(first, head, tail, undefined);
    } else {
        if (head) set_part(first++, head, GRANULE, undefined);
        if (tail < GRANULE) set_part(last--, 0, tail, undefined);
        for (size_t word = first / WORD; first <= last && word <= last / WORD; word++) {
            uint64_t mask = word_mask(word, first, last);
            put(all, word, mask, undefined);
            put(some, word, mask, false);
        }
    }
    pthread_mutex_unlock(&lock);
}

void ph_mark_undefined(const void *pointer, size_t bytes) { set(pointer, bytes, true); }
void ph_mark_defined(const void *pointer, size_t bytes) { set(pointer, bytes, false); }

bool ph_any_undefined(const void *pointer, size_t bytes)
{
    if (bytes == 0 || !ph_is_device(pointer)) return false;
    pthread_once(&once, map);
    uintptr_t low = (uintptr_t)pointer, high = low + bytes;
    size_t first = granule_of(low), last = granule_of(high - 1);
    for (size_t at = first; at <= last; at++) {
        if (at % WORD == 0 && last - at >= WORD && !all[at / WORD] && !some[at / WORD]) {
            at += WORD - 1;
            continue;
        }
        if (get(all, at)) return true;
        if (!get(some, at)) continue;
        size_t from = at == first ? low & (GRANULE - 1) : 0,
               to = at == last ? ((high - 1) & (GRANULE - 1)) + 1 : GRANULE;
        if (any(detail_of(at), from, to)) return true;
    }
    return false;
}

void ph_count_undefined_read(void)
{
    atomic_fetch_add_explicit(&ph_stats()->unknown_reads, 1, memory_order_relaxed);
}

/* ---- for the values library ---- */
PH_API(void, phantora_values_mark_undefined, (const void *pointer, size_t bytes))
{
    ph_mark_undefined(pointer, bytes);
}
PH_API(void, phantora_values_mark_defined, (const void *pointer, size_t bytes))
{
    ph_mark_defined(pointer, bytes);
}
PH_API(int, phantora_values_any_undefined, (const void *pointer, size_t bytes))
{
    return ph_any_undefined(pointer, bytes);
}
PH_API(int, phantora_is_device, (const void *pointer)) { return ph_is_device(pointer); }
PH_API(void, phantora_values_before_read, (const void *pointer, size_t bytes))
{
    ph_payload_settle(pointer, bytes);
}
/* The policy has chosen a result that only a GPU could know. */
PH_API(void, phantora_values_chosen, (void))
{
    atomic_fetch_add_explicit(&ph_stats()->chosen_values, 1, memory_order_relaxed);
}
PH_API(const char *, phantora_values_policy, (void)) { return ph_env("PHANTORA_VALUES"); }

/* ---- PyTorch's caching allocator ----
 *
 * It calls c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device) for every
 * block that it hands out (a positive size) or takes back (a negative one), however the tensor is
 * made: compiled graphs do not call aten::empty. */
struct c10_device { /* c10::Device */
    signed char type, index;
};
typedef void report_usage(void *, int64_t, size_t, size_t, struct c10_device);

static report_usage *real_report;
static void find_real_report(void)
{
    /* it is loaded, because it calls us; but RTLD_NEXT does not look there */
    void *c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    if (c10)
        real_report =
            (report_usage *)dlsym(c10, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
}

PH_API(void, _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
       (void *pointer, int64_t bytes, size_t allocated, size_t reserved, struct c10_device device))
{
    static pthread_once_t find_once = PTHREAD_ONCE_INIT;
    enum { CUDA = 1 };      /* c10::DeviceType */
    enum { QUICK = 16384 }; /* up to this size, reading the clock takes longer than the work */
    if (bytes > 0 && ph_is_device(pointer)) {
        size_t size = (size_t)bytes;
        bool slow = size > QUICK && !ph_is_clean(pointer, size);
        if (slow) ph_host_pause();
        ph_discard(pointer, size);
        ph_mark_undefined(pointer, size);
        if (slow) ph_host_resume();
    }
    if (device.type == CUDA) ph_holders_change(pointer, bytes, allocated, device.index);
    pthread_once(&find_once, find_real_report);
    if (real_report) real_report(pointer, bytes, allocated, reserved, device);
}
