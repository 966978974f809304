/* time/origin.c - the moment of real time that simulated time 0 is shown as.
 *
 * Why it exists: a job may compare `time.time()` of two ranks, as on servers whose clocks are
 * synchronized. Simulated time begins at 0 in each of them, so they need one origin. It is chosen
 * when the first of them is asked for the time: until then more ranks may have begun, whose clocks
 * must not go back.
 *
 * Processes that never live at the same time do not share it. Else the clock of a job that is
 * started again, or of the second of two jobs in one run, would begin in its past.
 *
 * RUN_DIR/origin holds the origin, or nothing. Each process that uses CUDA has a read lock on byte
 * MEMBERS for its life, so the first one finds none. Whoever changes the file has byte GUARD.
 * These are POSIX locks: the kernel frees them when a process is killed, and a forked child has
 * none. */
#include "time/origin.h"
#include "base/environment.h"
#include "base/fork.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MEMBERS = 0, GUARD = 1 };

/* A process has one lock on a byte, however many threads ask for it. */
static pthread_mutex_t PH_FREE_IN_CHILD mutex = PTHREAD_MUTEX_INITIALIZER;
static char path[512];
static int file = -1;
static _Atomic int64_t origin; /* 0: this process has not asked for it yet */

static _Noreturn void fail(const char *what, int error)
{
    const char *cure = error == ENOSPC || error == EDQUOT ? "; make room there" : "";
    ph_die("cannot %s %s: %s%s", what, path, strerror(error), cure);
}

static struct flock range(short type, int byte)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

static void lock(short type, int byte)
{
    struct flock wanted = range(type, byte);
    while (fcntl(file, F_SETLKW, &wanted) != 0)
        if (errno != EINTR) fail("lock", errno);
}

static bool alone(void)
{
    struct flock found = range(F_WRLCK, MEMBERS);
    if (fcntl(file, F_GETLK, &found) != 0) fail("look for locks on", errno);
    return found.l_type == F_UNLCK;
}

void ph_origin_join(void)
{
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    snprintf(path, sizeof path, "%s/origin", run_dir ? run_dir : "");
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) fail("open", errno);
    lock(F_WRLCK, GUARD);
    if (alone() && ftruncate(file, 0) != 0) fail("empty", errno);
    lock(F_RDLCK, MEMBERS);
    lock(F_UNLCK, GUARD);
}

/* A whole second: then differences of Python's floating-point seconds round the same way in every
 * run. Not before now: the caller's clock must not go back. */
static int64_t chosen(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((int64_t)now.tv_sec + 1) * 1000000000;
}

static int64_t agreed(void)
{
    int64_t there = 0;
    lock(F_WRLCK, GUARD);
    ssize_t got = pread(file, &there, sizeof there, 0);
    if (got < 0) fail("read", errno);
    if (got != sizeof there) {
        there = chosen();
        if (pwrite(file, &there, sizeof there, 0) != sizeof there) fail("write", errno);
    }
    lock(F_UNLCK, GUARD);
    return there;
}

int64_t ph_origin_ns(void)
{
    int64_t known = atomic_load(&origin);
    if (known) return known;
    pthread_mutex_lock(&mutex);
    if (!atomic_load(&origin)) atomic_store(&origin, agreed());
    known = atomic_load(&origin);
    pthread_mutex_unlock(&mutex);
    return known;
}
