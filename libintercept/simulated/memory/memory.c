/* memory.c - device and pinned memory: addresses, accounting to the byte, and the contents of small
 * tensors.
 *
 * Why it exists: the job's allocator must see a real GPU's answers, including out-of-memory, while
 * the host holds almost nothing. A device's slice of the window is one reserved mapping: pages
 * appear only where values are written. */
#include "base/fork.h"
#include "simulated/memory/memory.h"
#include "base/log.h"
#include "simulated/cuda/runtime.h"
#include "simulated/memory/addresses.h"
#include "simulated/memory/host_tensors.h"
#include "simulated/memory/ipc.h"
#include "simulated/values/defined.h"
#include "simulated/values/dirty.h"
#include "simulated/values/payload.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 2 << 20, GRAIN = 512, DEVICES = 8 };

/* Allocations sorted by address. There are a few thousand at most, so memmove is cheaper than a
 * tree. */
static struct {
    struct ph_allocation *item;
    size_t count, capacity;
} table;
static struct {
    bool mapped;
    uint64_t used; /* bytes charged, without context and communicators */
    struct ph_addresses addresses;
} devices[DEVICES];
static uint64_t next_id;
static pthread_mutex_t PH_FREE_IN_CHILD memory_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t lower_bound(uintptr_t address) /* first allocation whose base is above the address */
{
    size_t low = 0, high = table.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table.item[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct ph_allocation *find_locked(const void *pointer)
{
    size_t at = lower_bound((uintptr_t)pointer);
    if (at == 0) return NULL;
    struct ph_allocation *candidate = &table.item[at - 1];
    return (uintptr_t)pointer - candidate->base < candidate->bytes ? candidate : NULL;
}

static void insert_locked(struct ph_allocation fresh)
{
    if (table.count == table.capacity) {
        table.capacity = table.capacity ? table.capacity * 2 : 256;
        table.item = realloc(table.item, table.capacity * sizeof *table.item);
        if (!table.item) ph_die("out of host memory for the table of allocations");
    }
    size_t at = lower_bound(fresh.base);
    memmove(table.item + at + 1, table.item + at, (table.count - at) * sizeof *table.item);
    fresh.id = ++next_id;
    table.item[at] = fresh;
    table.count++;
}

static void remove_locked(struct ph_allocation *entry)
{
    size_t at = (size_t)(entry - table.item);
    memmove(entry, entry + 1, (table.count - at - 1) * sizeof *table.item);
    table.count--;
}

bool ph_is_device(const void *pointer)
{
    uintptr_t address = (uintptr_t)pointer;
    return (address >= PH_WINDOW_BASE && address < PH_WINDOW_END) ||
           (address >= PH_VIRTUAL_BASE && address < PH_VIRTUAL_END);
}

static uint64_t overhead(int device)
{
    const struct ph_device_spec *spec = ph_spec();
    bool communicates = ph_hub_connected() && device == ph_device_current() &&
                        atomic_load_explicit(&ph_stats()->comm_launches, memory_order_relaxed) > 0;
    return spec->context_bytes + (communicates ? spec->comm_bytes : 0);
}

static void publish_locked(void)
{
    if (!ph_hub_connected()) return;
    uint64_t sum = 0;
    for (int i = 0; i < DEVICES; i++)
        if (devices[i].mapped) sum += devices[i].used + overhead(i);
    atomic_store_explicit(&ph_stats()->allocated_bytes, sum, memory_order_relaxed);
    if (sum > atomic_load_explicit(&ph_stats()->peak_driver_bytes, memory_order_relaxed))
        atomic_store_explicit(&ph_stats()->peak_driver_bytes, sum, memory_order_relaxed);
}

/* What does not fit is noted until as much is granted: PyTorch asks again once it has freed what it
 * keeps. So a job that fails with a note is out of memory. */
static void note_locked(uint64_t bytes, uint64_t taken, bool granted)
{
    if (!ph_hub_connected()) return;
    struct ph_rank_stats *stats = ph_stats();
    uint64_t total = ph_spec()->memory_bytes;
    uint64_t refused = atomic_load_explicit(&stats->refused_bytes, memory_order_relaxed);
    if (granted && (!refused || bytes < refused)) return;
    atomic_store_explicit(&stats->refused_free_bytes, taken < total ? total - taken : 0,
                          memory_order_relaxed);
    atomic_store_explicit(&stats->refused_step,
                          atomic_load_explicit(&stats->steps, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&stats->refused_bytes, granted ? 0 : bytes, memory_order_relaxed);
}

static bool charge_locked(int device, uint64_t bytes)
{
    uint64_t taken = devices[device].used + overhead(device);
    bool granted = taken + bytes <= ph_spec()->memory_bytes;
    note_locked(bytes, taken, granted);
    if (!granted) return false;
    devices[device].used += bytes;
    publish_locked();
    return true;
}

bool ph_charge(int device, uint64_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    bool fits = charge_locked(device, bytes);
    pthread_mutex_unlock(&memory_lock);
    return fits;
}

void ph_discharge(int device, uint64_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    devices[device].used -= bytes;
    publish_locked();
    pthread_mutex_unlock(&memory_lock);
}

void ph_device_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    pthread_mutex_lock(&memory_lock);
    uint64_t taken = devices[device].used + overhead(device);
    *total_bytes = ph_spec()->memory_bytes;
    *free_bytes = taken < *total_bytes ? *total_bytes - taken : 0;
    pthread_mutex_unlock(&memory_lock);
}

/* The addresses of all devices are reserved before the host can use any of them. ph_is_device looks
 * at the address alone, and terabytes of reserved memory (pinned by a job; defined.c's) push the
 * kernel's next mappings down into the window. */
/* false: something is mapped in the window already; a slice may still be free */
static bool window_kept;
static pthread_once_t window_once = PTHREAD_ONCE_INIT;
static void keep_window(void)
{
    void *at = mmap((void *)PH_WINDOW_BASE, PH_WINDOW_END - PH_WINDOW_BASE, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    window_kept = at == (void *)PH_WINDOW_BASE;
    /* a kernel without MAP_FIXED_NOREPLACE */
    if (at != MAP_FAILED && !window_kept) munmap(at, PH_WINDOW_END - PH_WINDOW_BASE);
    if (window_kept) madvise(at, PH_WINDOW_END - PH_WINDOW_BASE, MADV_DONTDUMP);
}

static void map_window(uintptr_t base, size_t bytes, bool kept)
{
    /* With huge pages one written byte would cost 2 MiB. Core dumps and forks do not need the
     * window. */
    void *at =
        mmap((void *)base, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (kept ? MAP_FIXED : MAP_FIXED_NOREPLACE),
             -1, 0);
    if (at != (void *)base)
        ph_die("cannot reserve %zu GiB of addresses at %#lx (%s); vm.overcommit_memory=2 or a "
               "limit on address space (ulimit -v) "
               "does this: set vm.overcommit_memory to 0 or 1, and ulimit -v unlimited",
               bytes >> 30, (unsigned long)base, strerror(errno));
    madvise(at, bytes, MADV_NOHUGEPAGE);
    madvise(at, bytes, MADV_DONTDUMP);
}

/* The lowest free address that holds `bytes`. */
static uintptr_t first_fit_locked(uintptr_t from, uintptr_t end, size_t bytes, size_t alignment)
{
    uintptr_t at = from;
    for (size_t i = lower_bound(from - 1); i < table.count && table.item[i].base < end; i++) {
        if (at + bytes <= table.item[i].base) break;
        uintptr_t after = table.item[i].base + table.item[i].bytes;
        if (after > at) at = (after + alignment - 1) & ~(alignment - 1);
    }
    return at + bytes <= end ? at : 0;
}

/* The driver maps chunks of 2 MiB. A request under 1 MiB shares one; a larger request has its own.
 */
static bool is_small(size_t bytes) { return bytes < CHUNK / 2; }

static size_t rounded(size_t bytes)
{
    size_t unit = is_small(bytes) ? GRAIN : CHUNK;
    return (bytes + unit - 1) / unit * unit;
}

static uintptr_t slice(int device) { return PH_WINDOW_BASE + (uintptr_t)device * PH_SLICE_BYTES; }

static void use_locked(int device)
{
    if (devices[device].mapped) return;
    pthread_once(&window_once, keep_window);
    map_window(slice(device), PH_SLICE_BYTES, window_kept);
    ph_addresses_init(&devices[device].addresses, slice(device) + PH_SLICE_BYTES / 8,
                      slice(device) + PH_SLICE_BYTES);
    ph_device_use(device);
    devices[device].mapped = true;
}

void ph_device_code(int device)
{
    static _Atomic bool loaded[DEVICES];
    if (atomic_load_explicit(&loaded[device], memory_order_relaxed) ||
        atomic_exchange(&loaded[device], true))
        return;
    pthread_mutex_lock(&memory_lock);
    use_locked(device);
    ph_addresses_code(&devices[device].addresses);
    pthread_mutex_unlock(&memory_lock);
}

void ph_device_communicator(int device)
{
    pthread_mutex_lock(&memory_lock);
    use_locked(device);
    ph_addresses_communicator(&devices[device].addresses);
    pthread_mutex_unlock(&memory_lock);
}

void *ph_device_alloc(int device, size_t bytes)
{
    if (bytes == 0) return NULL;
    uintptr_t base = slice(device), middle = base + PH_SLICE_BYTES / 8, at = 0;
    size_t size = rounded(bytes);
    pthread_mutex_lock(&memory_lock);
    use_locked(device);
    if (charge_locked(device, size)) {
        at = is_small(bytes) ? first_fit_locked(base, middle, size, GRAIN)
                             : ph_addresses_take(&devices[device].addresses, size);
        if (at)
            insert_locked((struct ph_allocation){at, bytes, device, PH_DEVICE, 0});
        else
            devices[device].used -= size;
    }
    pthread_mutex_unlock(&memory_lock);
    if (at) ph_mark_undefined((void *)at, bytes);
    return (void *)at;
}

bool ph_device_free(void *pointer)
{
    pthread_mutex_lock(&memory_lock);
    struct ph_allocation *entry = find_locked(pointer);
    bool ok = entry && entry->base == (uintptr_t)pointer && entry->kind == PH_DEVICE &&
              (uintptr_t)pointer >= PH_WINDOW_BASE;
    if (ok) {
        size_t size = rounded(entry->bytes);
        devices[entry->device].used -= size;
        if (is_small(entry->bytes)) {
            memset(pointer, 0, entry->bytes);
        } else {
            if (atomic_load(&ph_ipc_ranges)) ph_ipc_freed(entry->base, entry->base + size);
            madvise(pointer, size, MADV_DONTNEED);
            ph_addresses_give(&devices[entry->device].addresses, entry->base, size);
        }
        remove_locked(entry);
        publish_locked();
    }
    pthread_mutex_unlock(&memory_lock);
    return ok;
}

/* ---- pinned host memory ---- */
static void pin_locked(int64_t bytes)
{
    static uint64_t pinned;
    pinned += (uint64_t)bytes;
    if (!ph_hub_connected()) return;
    atomic_store_explicit(&ph_stats()->pinned_bytes, pinned, memory_order_relaxed);
    if (pinned > atomic_load_explicit(&ph_stats()->peak_pinned_bytes, memory_order_relaxed))
        atomic_store_explicit(&ph_stats()->peak_pinned_bytes, pinned, memory_order_relaxed);
}

static void insert_pinned(void *pointer, size_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    insert_locked((struct ph_allocation){(uintptr_t)pointer, bytes, 0, PH_PINNED, 0});
    pin_locked((int64_t)bytes);
    pthread_mutex_unlock(&memory_lock);
}

/* Removes the pinned block that begins here and returns its size; 0 when there is none. */
static size_t remove_pinned(void *pointer)
{
    pthread_mutex_lock(&memory_lock);
    struct ph_allocation *entry = find_locked(pointer);
    size_t bytes =
        entry && entry->base == (uintptr_t)pointer && entry->kind == PH_PINNED ? entry->bytes : 0;
    if (bytes) remove_locked(entry), pin_locked(-(int64_t)bytes);
    pthread_mutex_unlock(&memory_lock);
    return bytes;
}

/* Only reserved: a job that offloads a model pins most of a server's memory, and little of it is
 * written here. */
void *ph_pinned_alloc(size_t bytes)
{
    size_t size = (bytes + 4095) & ~(size_t)4095;
    pthread_once(&window_once, keep_window);
    void *pointer = ph_host_block(size);
    if (pointer)
        ph_host_written(pointer, size); /* pinned pages are there from the start */
    else
        pointer = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) return NULL;
    insert_pinned(pointer, size);
    return pointer;
}

bool ph_pinned_free(void *pointer)
{
    size_t bytes = remove_pinned(pointer);
    if (bytes && ph_host_is_block(pointer))
        ph_host_block_free(pointer);
    else if (bytes)
        munmap(pointer, bytes);
    return bytes > 0;
}

void ph_pinned_register(void *pointer, size_t bytes) { insert_pinned(pointer, bytes); }

bool ph_pinned_unregister(void *pointer) { return remove_pinned(pointer) > 0; }

/* ---- virtual addresses (cuMem*): reserved ranges are entries of the table; their device is -1
 * until something is mapped ---- */
void *ph_virtual_reserve(size_t bytes, size_t alignment)
{
    if (alignment < CHUNK) alignment = CHUNK;
    pthread_mutex_lock(&memory_lock);
    uintptr_t at = first_fit_locked(PH_VIRTUAL_BASE, PH_VIRTUAL_END, bytes, alignment);
    if (at) {
        pthread_once(&window_once, keep_window);
        map_window(at, bytes, false);
        insert_locked((struct ph_allocation){at, bytes, -1, PH_DEVICE, 0});
    }
    pthread_mutex_unlock(&memory_lock);
    return (void *)at;
}

bool ph_virtual_free(void *pointer, size_t bytes)
{
    pthread_mutex_lock(&memory_lock);
    struct ph_allocation *entry = find_locked(pointer);
    bool ok = entry && entry->base == (uintptr_t)pointer && entry->bytes == bytes;
    if (ok) {
        remove_locked(entry);
        munmap(pointer, bytes);
    }
    pthread_mutex_unlock(&memory_lock);
    return ok;
}

void ph_virtual_owner(void *pointer, size_t bytes, int device)
{
    pthread_mutex_lock(&memory_lock);
    struct ph_allocation *entry = find_locked(pointer);
    if (entry && device >= 0) entry->device = device;
    pthread_mutex_unlock(&memory_lock);
    if (device < 0) madvise(pointer, bytes, MADV_DONTNEED);
}

/* ---- look-ups ---- */
bool ph_find(const void *pointer, struct ph_allocation *found)
{
    pthread_mutex_lock(&memory_lock);
    struct ph_allocation *entry = find_locked(pointer);
    if (entry) *found = *entry;
    pthread_mutex_unlock(&memory_lock);
    return entry != NULL;
}

enum ph_memory_kind ph_kind(const void *pointer)
{
    struct ph_allocation found;
    if (ph_is_device(pointer)) return PH_DEVICE;
    return ph_find(pointer, &found) ? found.kind : PH_PAGEABLE;
}

int ph_pointer_device(const void *pointer)
{
    struct ph_allocation found;
    return ph_find(pointer, &found) && found.device >= 0 ? found.device : ph_device_current();
}

/* ---- bytes ---- */
/* A large tensor reads as zero on the host. A page that is zero already is only read: if it was
 * never written it then costs no memory, so gigabytes of offloaded tensors stay a reservation. */
static void make_host_zero(char *at, size_t bytes)
{
    enum { PAGE = 4096 };
    for (char *end = at + bytes; at < end;) {
        size_t piece = PAGE - (uintptr_t)at % PAGE;
        if (piece > (size_t)(end - at)) piece = (size_t)(end - at);
        if (!ph_all_zero(at, piece)) memset(at, 0, piece);
        at += piece;
    }
}

static void make_zero(void *pointer, size_t bytes)
{
    if (ph_is_device(pointer))
        ph_zero(pointer, bytes);
    else if (ph_host_is_block(pointer))
        ph_host_clear(pointer, bytes);
    else
        make_host_zero(pointer, bytes);
}

static void mark_copied(void *destination, size_t bytes)
{
    ph_host_written(destination, bytes);
    ph_mark_dirty(destination, bytes);
    if (bytes > PH_SMALL_BYTES) ph_keep_copied(destination);
}

/* The host reads a large tensor that is wholly defined: mostly zeros that were never written, and a
 * few written parts. */
static void copy_defined(char *to, const char *from, size_t bytes)
{
    enum { PIECE = 65536 }; /* the granularity of the dirty bitmap */
    while (bytes) {
        size_t piece = PIECE - (uintptr_t)from % PIECE;
        if (piece > bytes) piece = bytes;
        if (ph_is_clean(from, piece))
            make_host_zero(to, piece);
        else
            memcpy(to, from, piece);
        to += piece, from += piece, bytes -= piece;
    }
}

bool ph_move(void *destination, const void *source, size_t bytes)
{
    ph_payload_settle(source, bytes);
    ph_payload_settle(destination, bytes);
    bool from_device = ph_is_device(source), to_device = ph_is_device(destination),
         hollow = to_device && ph_host_any_hollow(source, bytes),
         undefined = hollow || ph_any_undefined(source, bytes);
    bool large = bytes > PH_COPY_BYTES && (from_device || to_device);
    if (large && !to_device && !undefined) return copy_defined(destination, source, bytes), false;
    if (to_device && (undefined || (large && !(from_device && ph_is_clean(source, bytes)))))
        ph_mark_undefined(destination, bytes);
    else if (to_device)
        ph_mark_defined(destination, bytes);
    if (large || hollow || (to_device && bytes >= 4096 && ph_all_zero(source, bytes)))
        make_zero(destination, bytes);
    else
        mark_copied(destination, bytes), memmove(destination, source, bytes);
    return undefined && !to_device;
}

void ph_fill(void *destination, int value, size_t bytes)
{
    ph_payload_settle(destination, bytes);
    if (value == 0 || bytes <= PH_COPY_BYTES)
        ph_mark_defined(destination, bytes);
    else
        ph_mark_undefined(destination, bytes);
    if (value == 0 || bytes > PH_COPY_BYTES)
        make_zero(destination, bytes);
    else
        mark_copied(destination, bytes), memset(destination, value, bytes);
}
