/* known.c - which bytes of device memory have values that somebody computed or wrote.
 *
 * Why it exists: bytes of zero may be a value or the lack of one, and both the report and the
 * policy of --values must tell them apart. PyTorch's allocator hands memory out again and again, so
 * each block is made unknown, and zero, as it is handed out; a copy from the host, a fill, a
 * collective or an operator that ran on the CPU makes its bytes known.
 *
 * A pair of bits per 64 KiB says all, nothing or something of it is unknown; only where it is
 * something, a bit per byte does. Marking a tensor of gigabytes writes some hundred words. */
#include "simulated/values/defined.h"
#include "base/core.h"
#include "simulated/values/dirty.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { SHIFT = 16, WORD = 64 };
#define GRANULE ((size_t)1 << SHIFT)
#define DETAIL (GRANULE / 8) /* bytes of detail for a granule */
#define WINDOW_GRANULES ((PH_WINDOW_END - PH_WINDOW_BASE) >> SHIFT)
#define VIRTUAL_GRANULES ((PH_VIRTUAL_END - PH_VIRTUAL_BASE) >> SHIFT)

/* Reserve-only: pages appear where they are written. `detail` means something only where `some` is
 * set. */
static _Atomic uint64_t *all, *some;
static unsigned char *window_detail, *virtual_detail;
static pthread_once_t once = PTHREAD_ONCE_INIT, virtual_once = PTHREAD_ONCE_INIT;
/* changes; looks need none: other tensors' changes do not matter to them */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        ph_die("cannot reserve %zu MiB of addresses: %s", bytes >> 20, strerror(errno));
    return at;
}

static void map(void)
{
    size_t bytes = (WINDOW_GRANULES + VIRTUAL_GRANULES) / 8;
    some = reserve(bytes);
    window_detail = reserve(WINDOW_GRANULES * DETAIL);
    all = reserve(bytes);
}
static void map_virtual(void) { virtual_detail = reserve(VIRTUAL_GRANULES * DETAIL); }

static size_t granule_of(uintptr_t address)
{
    return address >= PH_WINDOW_BASE ? (address - PH_WINDOW_BASE) >> SHIFT
                                     : WINDOW_GRANULES + ((address - PH_VIRTUAL_BASE) >> SHIFT);
}

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

static void set_part(size_t granule, size_t from, size_t to, bool unknown)
{
    uint64_t mask = 1ull << granule % WORD;
    bool whole = get(all, granule);
    if (whole ? unknown : !unknown && !get(some, granule)) return; /* as it is */
    unsigned char *detail = detail_of(granule);
    if (!get(some, granule)) memset(detail, whole ? 0xff : 0, DETAIL);
    fill(detail, from, to, unknown);
    put(some, granule / WORD, mask, true);
    put(all, granule / WORD, mask, false); /* last: a look meanwhile finds one of the two */
}

static void set(const void *pointer, size_t bytes, bool unknown)
{
    if (bytes == 0 || !ph_is_device(pointer)) return;
    pthread_once(&once, map);
    uintptr_t low = (uintptr_t)pointer, high = low + bytes;
    size_t first = granule_of(low), last = granule_of(high - 1);
    size_t head = low & (GRANULE - 1), tail = ((high - 1) & (GRANULE - 1)) + 1;
    pthread_mutex_lock(&lock);
    if (first == last && tail - head < GRANULE) {
        set_part(first, head, tail, unknown);
    } else {
        if (head) set_part(first++, head, GRANULE, unknown);
        if (tail < GRANULE) set_part(last--, 0, tail, unknown);
        for (size_t word = first / WORD; first <= last && word <= last / WORD; word++) {
            uint64_t mask = ~0ull;
            if (word == first / WORD) mask &= ~0ull << first % WORD;
            if (word == last / WORD) mask &= ~0ull >> (WORD - 1 - last % WORD);
            put(all, word, mask, unknown);
            put(some, word, mask, false);
        }
    }
    pthread_mutex_unlock(&lock);
}

void ph_unknown(const void *pointer, size_t bytes) { set(pointer, bytes, true); }
void ph_known(const void *pointer, size_t bytes) { set(pointer, bytes, false); }

bool ph_any_unknown(const void *pointer, size_t bytes)
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

void ph_unknown_read(void)
{
    atomic_fetch_add_explicit(&ph_stats()->unknown_reads, 1, memory_order_relaxed);
}

/* ---- for the values library ---- */
PH_API(void, phantora_values_unknown, (const void *pointer, size_t bytes))
{
    ph_unknown(pointer, bytes);
}
PH_API(void, phantora_values_known, (const void *pointer, size_t bytes))
{
    ph_known(pointer, bytes);
}
PH_API(int, phantora_values_any_unknown, (const void *pointer, size_t bytes))
{
    return ph_any_unknown(pointer, bytes);
}
const char *const ph_without_values =
    "small operators do not run on the CPU, so what the GPU would compute reads as zero";
/* The policy has chosen what only a GPU could know. */
PH_API(void, phantora_values_chosen, (void))
{
    atomic_fetch_add_explicit(&ph_stats()->chosen_values, 1, memory_order_relaxed);
}
PH_API(const char *, phantora_values_policy, (void)) { return ph_env("PHANTORA_VALUES"); }

/* ---- PyTorch's caching allocator
 * -------------------------------------------------------------------------------------------- It
 * tells c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device) of every
 * block that it hands out (a positive size) and takes back (a negative one), whichever way the
 * tensor is made: compiled graphs do not call aten::empty. */
struct c10_device { /* c10::Device */
    signed char type, index;
};
typedef void report_function(void *, int64_t, size_t, size_t, struct c10_device);

static report_function *real_report;
static void find_report(void)
{
    /* it calls us, so it is there; but not where RTLD_NEXT looks */
    void *c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    if (c10)
        real_report =
            (report_function *)dlsym(c10, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
}

PH_API(void, _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE,
       (void *pointer, int64_t bytes, size_t allocated, size_t reserved, struct c10_device device))
{
    static pthread_once_t find_once = PTHREAD_ONCE_INIT;
    enum { QUICK = 16384 }; /* up to here looking at the clock takes longer than the work */
    if (bytes > 0 && ph_is_device(pointer)) {
        size_t size = (size_t)bytes;
        bool slow = size > QUICK && !ph_absent(pointer, size);
        if (slow) ph_host_pause();
        ph_forget(pointer, size);
        ph_unknown(pointer, size);
        if (slow) ph_host_resume();
    }
    pthread_once(&find_once, find_report);
    if (real_report) real_report(pointer, bytes, allocated, reserved, device);
}
