/* simulated/files/mapped.c - a private map of a file may be larger than this machine's memory.
 *
 * Why it exists: torch.load(mmap=True) maps a checkpoint privately and for writing. The kernel then
 * wants memory for all of it, though nobody writes, and refuses a file that is larger than the
 * machine's memory. The simulated server has that memory. So a map that was refused is asked for
 * once more without a reservation: pages that are written take memory, as they come. */
#define _GNU_SOURCE /* RTLD_NEXT, MAP_NORESERVE */
#include "base/api.h"
#include "base/lookup.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void *(*mmap_type)(void *, size_t, int, int, int, off_t);
static mmap_type real_mmap, real_mmap64;

__attribute__((constructor)) static void find_real(void)
{
    real_mmap = (mmap_type)ph_real_dlsym()(RTLD_NEXT, "mmap");
    real_mmap64 = (mmap_type)ph_real_dlsym()(RTLD_NEXT, "mmap64");
}

/* `real`: NULL until the constructor has run. An allocator may map memory while symbols are looked
 * up. */
static void *map(mmap_type real, void *at, size_t bytes, int protection, int flags, int fd,
                 off_t from)
{
    if (real) return real(at, bytes, protection, flags, fd, from);
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, from);
}

static void *map_or_without_reservation(mmap_type real, void *at, size_t bytes, int protection,
                                        int flags, int fd, off_t from)
{
    enum { KIND = MAP_PRIVATE | MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE };
    void *mapped = map(real, at, bytes, protection, flags, fd, from);
    bool reserved = fd >= 0 && (flags & KIND) == MAP_PRIVATE && (protection & PROT_WRITE);
    if (mapped != MAP_FAILED || errno != ENOMEM || !reserved) return mapped;
    return map(real, at, bytes, protection, flags | MAP_NORESERVE, fd, from);
}

PH_API(void *, mmap, (void *at, size_t bytes, int protection, int flags, int fd, off_t from))
{
    return map_or_without_reservation(real_mmap, at, bytes, protection, flags, fd, from);
}

PH_API(void *, mmap64, (void *at, size_t bytes, int protection, int flags, int fd, off_t from))
{
    return map_or_without_reservation(real_mmap64, at, bytes, protection, flags, fd, from);
}
