/* base/absent.c - the ranks of a folded job that do not run (docs/folding.md).
 *
 * Why it exists: with --fold, some ranks stand for others. The agents of the job start a process
 * for every rank all the same. That of an absent rank ends up here, before its main: it waits until
 * its representative has ended, and ends in the same way. Its memory is that of the loaded
 * libraries.
 *
 * A representative holds a lock on a file of the run directory for its life, and leaves its exit
 * status there. phantora_ns/model/fold.py has the same arithmetic of ranks. */
#define _GNU_SOURCE
#include "base/environment.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 20, GRACE_S = 3, REPRESENTATIVE = 1, PATH_BYTES = 600 };

/* Of PHANTORA_FOLD, and where this process's rank is in it. */
struct fold {
    long period, block, world, last, rank, member;
};

static long number_of(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = text && *text ? strtol(text, &end, 10) : -1;
    return end && !*end ? value : -1;
}

/* False for a process that is no rank of a folded job. */
static bool read_fold(struct fold *fold)
{
    const char *text = ph_env("PHANTORA_FOLD");
    if (!text || sscanf(text, "%ld,%ld,%ld,%ld", &fold->period, &fold->block, &fold->world,
                        &fold->last) != 4)
        return false;
    fold->rank = number_of("RANK");
    if (fold->rank < 0 || fold->rank >= fold->world) return false;
    fold->member = fold->rank % fold->block / fold->period;
    return true;
}

/* What the arithmetic of ranks takes for granted. */
static void check_place(const struct fold *fold)
{
    long node = number_of("PHANTORA_NODE"), local = number_of("LOCAL_RANK"),
         each = number_of("LOCAL_WORLD_SIZE");
    if (number_of("WORLD_SIZE") == fold->world && each > 0 && fold->rank / each == node &&
        fold->rank % each == local && fold->period % each == 0)
        return;
    ph_die(
        "rank %ld cannot be folded: ranks are not numbered node by node, or the job has not %ld of "
        "them; in the job's launcher; use --fold off",
        fold->rank, fold->world);
}

/* False when the path would be too long, as no run directory's is. */
static bool path_of(long rank, char path[PATH_BYTES])
{
    const char *run_dir = ph_env("PHANTORA_RUN_DIR");
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    return run_dir && snprintf(path, PATH_BYTES, "%s/fold/%ld-%s", run_dir, rank,
                               attempt ? attempt : "0") < PATH_BYTES;
}

static int life = -1; /* the file of a representative */
static pid_t life_pid;

static void leave_status(int status, void *unused)
{
    (void)unused;
    char text[16];
    int length = snprintf(text, sizeof text, "%d\n", status & 255);
    if (getpid() == life_pid && write(life, text, (size_t)length) < 0) { /* it is then not known */
    }
}

/* A program that this rank starts finds the lock taken, and is nobody's representative. */
static void live(const struct fold *fold)
{
    char path[PATH_BYTES];
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (!path_of(fold->rank, path)) return;
    /* a lock of this kind outlives an exec when its descriptor does, and no child inherits it */
    life = open(path, O_RDWR | O_CREAT, 0600);
    if (life < 0 || fcntl(life, F_SETLK, &whole) < 0) return;
    life_pid = getpid();
    on_exit(leave_status, NULL);
}

/* Waits until a representative has started: until its file is locked, or has been for so short a
 * time that nobody saw it. */
static int started(const char *path)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    int file;
    while ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) nanosleep(&pause, NULL);
    for (int looks = 0; looks < GRACE_S * 1000 / LOOK_MS; looks++) {
        struct flock held = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        if (fcntl(file, F_GETLK, &held) < 0 || held.l_type != F_UNLCK) break;
        nanosleep(&pause, NULL);
    }
    return file;
}

/* The exit status that a representative has left; -1 when it left none. */
static int await(const char *path)
{
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    char text[16] = "";
    int file = started(path);
    while (fcntl(file, F_SETLKW, &whole) < 0 && errno == EINTR) {}
    return read(file, text, sizeof text - 1) > 0 ? atoi(text) : -1;
}

/* The first constructor: an absent rank must not touch anything. */
__attribute__((constructor(101))) static void leave_out(void)
{
    struct fold fold;
    char path[PATH_BYTES];
    if (!read_fold(&fold)) return;
    long members = fold.block / fold.period;
    check_place(&fold);
    if (fold.member == 0 || fold.member >= members - fold.last) return;
    if (fold.member == REPRESENTATIVE) {
        live(&fold);
        return;
    }
    if (!path_of(fold.rank + (REPRESENTATIVE - fold.member) * fold.period, path)) return;
    int status = await(path);
    if (status != 0) sleep(GRACE_S); /* let the representative's own agent say it first */
    _exit(status > 0 ? status : 0);
}
