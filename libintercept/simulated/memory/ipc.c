/* ipc.c - memory and events that are shared with other processes of the node (cudaIpc*), through
 * which torch.multiprocessing hands over CUDA tensors.
 *
 * Why it exists: values lie at their addresses in each process, so exported memory is moved into a
 * file of the run directory that both processes map. An event's time expression means nothing in
 * another process, so its simulated time is exported: all clocks of a run are the same. Rule:
 * memory is charged where it was allocated, never where it was opened. */
#define PH_CLASS PH_SIMULATED
#define _GNU_SOURCE /* syscall */
#include "base/fork.h"
#include "simulated/memory/ipc.h"
#include "base/environment.h"
#include "base/log.h"
#include "work/cudart.h"
#include "simulated/cuda/runtime.h"
#include "simulated/memory/memory.h"
#include "simulated/values/dirty.h"
#include "simulated/values/payload.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RANGES = 512, CHUNK = 2 << 20, GRANULE = 1 << 16, EVENT_INTERPROCESS = 4 };

struct ipc_handle { /* stands for cudaIpcMemHandle_t and cudaIpcEventHandle_t: 64 bytes */
    char file[32];
    int pid, physical;
    uint64_t bytes, offset;
    uint64_t unused;
};
static struct range {
    uintptr_t low, high;
    char file[32];
    bool imported;
} ranges[RANGES];
static int range_count;
static pthread_mutex_t PH_FREE_IN_CHILD range_lock = PTHREAD_MUTEX_INITIALIZER;

struct shared_event { /* one page of the file */
    _Atomic uint64_t records, time_ns;
};

static void path_of(const char *file, char path[512])
{
    snprintf(path, 512, "%s/%s", ph_env("PHANTORA_RUN_DIR"), file);
}

/* Not through unlink, which waits for this rank's turn when the job calls it (files/removals.c). */
static void delete_file(const char *path) { syscall(SYS_unlinkat, AT_FDCWD, path, 0); }

static int make_file(char file[32], size_t bytes)
{
    enum { SMALL_BYTES = 1 << 20 };
    static _Atomic int number;
    char path[512];
    const char *node = ph_env("PHANTORA_NODE");
    snprintf(file, 32, "ipc-%.6s-%d-%d", node ? node : "0", (int)getpid(),
             atomic_fetch_add(&number, 1));
    path_of(file, path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    /* Real blocks where they are few. Large ranges hold values in a few places only, so their files
     * are sparse: writing there on a full disk is a SIGBUS (explain_full_disk). */
    int failed = fd < 0                        ? errno
                 : bytes <= SMALL_BYTES        ? posix_fallocate(fd, 0, (off_t)bytes)
                 : ftruncate(fd, (off_t)bytes) ? errno
                                               : 0;
    if (!failed) return fd;
    ph_warn("memory cannot be shared between processes: %s: %s", path, strerror(failed));
    if (fd >= 0) close(fd), delete_file(path);
    return -1;
}

static struct sigaction others; /* what the job does at a SIGBUS */

/* Says why, and leaves the end to whoever handled the signal before. Only async-signal-safe calls.
 */
static void explain_full_disk(int number, siginfo_t *info, void *context)
{
    static const char line[] =
        "phantora-ns: memory that is shared between processes cannot be written: No space left on "
        "the device of the run directory; make room, or set "
        "XDG_RUNTIME_DIR to another folder\n";
    uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    sigaction(number, &others, NULL); /* the write is tried again, and fails again */
    if (info->si_code <= 0) {         /* somebody sent the signal: nothing is tried again */
        raise(number);
        return;
    }
    for (int i = 0; i < RANGES; i++)
        if (at - ranges[i].low < ranges[i].high - ranges[i].low) {
            if (write(STDERR_FILENO, line, sizeof line - 1) < 0) break;
            break;
        }
}

static void watch_for_full_disk(void)
{
    struct sigaction ours = {.sa_sigaction = explain_full_disk,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &others);
}

static int open_file(const struct ipc_handle *name)
{
    char path[512];
    if (memchr(name->file, 0, sizeof name->file) == NULL || strncmp(name->file, "ipc-", 4) ||
        strchr(name->file, '/'))
        return -1;
    path_of(name->file, path);
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Moves the contents of a range into the file, and maps the file over the range. */
static bool move_to(int fd, uintptr_t low, uintptr_t high)
{
    for (uintptr_t at = low; at < high; at += GRANULE) {
        size_t bytes = high - at < GRANULE ? high - at : GRANULE;
        if (!ph_is_clean((void *)at, bytes) &&
            pwrite(fd, (void *)at, bytes, (off_t)(at - low)) != (ssize_t)bytes)
            return false;
    }
    return mmap((void *)low, high - low, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
           (void *)low;
}

bool ph_ipc_shared(uintptr_t low, uintptr_t high)
{
    bool found = false;
    pthread_mutex_lock(&range_lock);
    for (int i = 0; i < range_count && !found; i++)
        found = low < ranges[i].high && ranges[i].low < high;
    pthread_mutex_unlock(&range_lock);
    return found;
}

static void add_locked(struct range range)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_for_full_disk);
    ranges[range_count++] = range;
    ph_mark_dirty((void *)range.low,
                  range.high - range.low); /* from now on other processes may write there */
    atomic_store(&ph_ipc_ranges, range_count);
}

_Atomic int ph_ipc_ranges;

static int export_range(uintptr_t low, uintptr_t high, struct range *found)
{
    pthread_mutex_lock(&range_lock);
    int status = CUDA_OK, at = 0;
    while (at < range_count && !(low < ranges[at].high && ranges[at].low < high)) at++;
    if (at == range_count) {
        struct range fresh = {.low = low, .high = high};
        int fd = range_count < RANGES ? make_file(fresh.file, high - low) : -1;
        if (fd >= 0 && move_to(fd, low, high))
            add_locked(fresh);
        else
            status = CUDA_OUT_OF_MEMORY;
        if (fd >= 0) close(fd);
    } else if (ranges[at].imported || ranges[at].low > low || ranges[at].high < high)
        status = CUDA_INVALID_VALUE;
    if (status == CUDA_OK) *found = ranges[at];
    pthread_mutex_unlock(&range_lock);
    return status;
}

static bool remove_range(uintptr_t low, uintptr_t high, struct range *removed)
{
    bool found = false;
    pthread_mutex_lock(&range_lock);
    for (int i = 0; i < range_count && !found; i++)
        if (ranges[i].low == low && ranges[i].high == high) {
            *removed = ranges[i];
            ranges[i] = ranges[--range_count];
            found = true;
        }
    atomic_store(&ph_ipc_ranges, range_count);
    pthread_mutex_unlock(&range_lock);
    return found;
}

void ph_ipc_freed(uintptr_t low, uintptr_t high)
{
    struct range range;
    char path[512];
    /* part of a shared range stays shared, as the driver's own chunks do */
    if (!remove_range(low, high, &range)) return;
    path_of(range.file, path);
    delete_file(path);
    if (mmap((void *)low, high - low, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        ph_die("cannot map %zu bytes anew: %s", (size_t)(high - low), strerror(errno));
}

/* ---- memory ---- */
PH_API(int, cudaIpcGetMemHandle, (struct ipc_handle *handle, void *pointer))
{
    struct ph_allocation found;
    struct range range;
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (!handle || !ph_find(pointer, &found) || found.kind != PH_DEVICE ||
        found.base < PH_WINDOW_BASE)
        return ph_set_error(CUDA_INVALID_VALUE);
    ph_host_call(PH_CALL_MALLOC);
    /* the driver also exports whole chunks */
    uintptr_t low = found.base & ~(uintptr_t)(CHUNK - 1),
              high = (found.base + found.bytes + CHUNK - 1) & ~(uintptr_t)(CHUNK - 1);
    ph_host_pause();
    ph_payload_settle((void *)low, high - low);
    int status = export_range(low, high, &range);
    ph_host_resume();
    if (status) return ph_set_error(status);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->file, range.file, sizeof range.file);
    handle->pid = (int)getpid();
    handle->physical = ph_device_physical(found.device);
    handle->bytes = range.high - range.low;
    handle->offset = found.base - range.low;
    return CUDA_OK;
}

PH_API(int, cudaIpcOpenMemHandle, (void **pointer, struct ipc_handle handle, unsigned flags))
{
    (void)flags; /* cudaIpcMemLazyEnablePeerAccess: peers can always reach each other */
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_touch();
    if (handle.pid == (int)getpid()) return ph_set_error(CUDA_INVALID_CONTEXT);
    int fd = open_file(&handle), device = ph_physical_visible(handle.physical);
    if (fd < 0) return ph_set_error(CUDA_INVALID_HANDLE);
    ph_host_call(PH_CALL_MALLOC);
    char *at = ph_virtual_reserve(handle.bytes, CHUNK);
    bool mapped =
        at && mmap(at, handle.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at;
    close(fd);
    pthread_mutex_lock(&range_lock);
    mapped = mapped && range_count < RANGES;
    if (mapped)
        add_locked((struct range){
            .low = (uintptr_t)at, .high = (uintptr_t)at + handle.bytes, .imported = true});
    pthread_mutex_unlock(&range_lock);
    if (!mapped) {
        if (at) ph_virtual_free(at, handle.bytes);
        return ph_set_error(CUDA_OUT_OF_MEMORY);
    }
    ph_virtual_owner(at, handle.bytes, device < 0 ? ph_device_current() : device);
    *pointer = at + handle.offset;
    return CUDA_OK;
}

PH_API(int, cudaIpcCloseMemHandle, (void *pointer))
{
    struct ph_allocation found;
    struct range range;
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    ph_host_call(PH_CALL_FREE);
    if (!ph_find(pointer, &found) || !remove_range(found.base, found.base + found.bytes, &range))
        return ph_set_error(CUDA_INVALID_VALUE);
    ph_device_synchronize(found.device);
    ph_virtual_free((void *)found.base, found.bytes);
    return CUDA_OK;
}

/* ---- events ---- */
static struct shared_event *map_event(int fd)
{
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

void ph_ipc_recorded(const struct ph_event *event)
{
    struct shared_event *shared = event->shared;
    uint64_t time = ph_event_moment(event);
    atomic_store(&shared->time_ns, time);
    atomic_fetch_add(&shared->records, 1);
}

void ph_ipc_look(struct ph_event *event)
{
    struct shared_event *shared = event->shared;
    /* only the recording process knows more */
    if (!event->imported || atomic_load(&shared->records) == 0) return;
    uint64_t time = atomic_load(&shared->time_ns);
    pthread_mutex_lock(&ph_lock);
    if (ph_host.open) ph_host_settle_locked();
    uint64_t now = ph_clock();
    event->expr = (struct ph_expr){0};
    event->position = (struct ph_stream_position){.queue_slots = UINT64_MAX};
    ph_expr_add_host(&event->expr, time > now ? (int64_t)(time - now) : 0);
    event->recorded = true;
    pthread_mutex_unlock(&ph_lock);
}

void ph_ipc_gone(struct ph_event *event) { munmap(event->shared, 4096); }

/* Two threads may export an event at once, and a third may record it. */
static bool share_event(struct ph_event *event, int *device)
{
    pthread_mutex_lock(&range_lock);
    bool fresh = !event->shared;
    int fd = fresh ? make_file(event->file, 4096) : -1;
    if (fd >= 0) event->shared = map_event(fd);
    bool shared = event->shared;
    pthread_mutex_unlock(&range_lock);
    pthread_mutex_lock(&ph_lock);
    bool recorded = event->recorded;
    *device = event->device;
    pthread_mutex_unlock(&ph_lock);
    if (fresh && shared && recorded) ph_ipc_recorded(event);
    return shared;
}

PH_API(int, cudaIpcGetEventHandle, (struct ipc_handle *handle, struct ph_event *event))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    if (!ph_event_valid(event) || event->imported) return ph_set_error(CUDA_INVALID_HANDLE);
    if (!(event->flags & EVENT_INTERPROCESS) || !handle) return ph_set_error(CUDA_INVALID_VALUE);
    ph_host_call(PH_CALL_RECORD);
    int device;
    if (!share_event(event, &device)) return ph_set_error(CUDA_OUT_OF_MEMORY);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->file, event->file, sizeof event->file);
    handle->pid = (int)getpid();
    handle->physical = ph_device_physical(device);
    return CUDA_OK;
}

PH_API(int, cudaIpcOpenEventHandle, (struct ph_event **event, struct ipc_handle handle))
{
    if (ph_forked()) return ph_set_error(CUDA_NOT_INITIALIZED);
    int fd = open_file(&handle);
    struct shared_event *shared = fd < 0 ? NULL : map_event(fd);
    if (!event || !shared) return ph_set_error(CUDA_INVALID_HANDLE);
    *event = ph_event_create(EVENT_INTERPROCESS | 2 /* without timing */);
    (*event)->shared = shared;
    (*event)->imported = true;
    ph_ipc_look(*event);
    return CUDA_OK;
}
