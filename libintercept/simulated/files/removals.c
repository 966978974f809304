/* simulated/files/removals.c - a file is deleted when no rank can open it any more at an earlier
 * simulated time (time/turns.c).
 *
 * Rule: only files that hold something, and that existed when this process last communicated.
 * Others cannot know of a younger one. File systems date by a coarse clock, so for some
 * milliseconds after communication a new file may count as older. An empty one is a lock: whoever
 * waits for its end may be earlier, and may poll. */
#define _GNU_SOURCE /* RTLD_NEXT, statx */
#include "base/api.h"
#include "base/lookup.h"
#include "time/turns.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*path_type)(const char *);
typedef int (*unlinkat_type)(int, const char *, int);
static path_type real_unlink, real_remove;
static unlinkat_type real_unlinkat;

/* Before any other thread. */
__attribute__((constructor)) static void find_real(void)
{
    real_remove = (path_type)ph_real_dlsym()(RTLD_NEXT, "remove");
    real_unlinkat = (unlinkat_type)ph_real_dlsym()(RTLD_NEXT, "unlinkat");
    real_unlink = (path_type)ph_real_dlsym()(RTLD_NEXT, "unlink");
}

static bool needs_turn(int folder, const char *path)
{
    struct statx file;
    if (statx(folder, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &file) != 0)
        return false;
    if (!S_ISREG(file.stx_mode) || file.stx_size == 0) return false;
    /* Some file systems do not tell when a file was made. Its last change was no sooner. */
    struct statx_timestamp made = file.stx_mask & STATX_BTIME ? file.stx_btime : file.stx_mtime;
    return ph_turn_known(made.tv_sec * 1000000000ll + made.tv_nsec);
}

static void wait_for_turn(int folder, const char *path)
{
    int before = errno;
    if (ph_turn_known(0) && needs_turn(folder, path)) ph_turn_wait();
    errno = before;
}

PH_API(int, unlink, (const char *path))
{
    if (!real_unlink) find_real();
    wait_for_turn(AT_FDCWD, path);
    return real_unlink(path);
}

PH_API(int, unlinkat, (int folder, const char *path, int flags))
{
    if (!real_unlinkat) find_real();
    if (flags == 0) wait_for_turn(folder, path);
    return real_unlinkat(folder, path, flags);
}

PH_API(int, remove, (const char *path))
{
    if (!real_remove) find_real();
    wait_for_turn(AT_FDCWD, path);
    return real_remove(path);
}
