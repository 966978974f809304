/* userns.c - the one user namespace that owns everything.
 *
 * Why it exists: inside it the sandbox may do what root may do with network devices, mounts and
 * host names, without being root outside.
 *
 * Rule: every id that is visible outside and may be mapped has the same number inside. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t written = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return written == (ssize_t)strlen(text) ? 0 : -1;
}

/* The identity map over all ids of the outer namespace. It is made from the outer namespace's own
 * map (lines of "inside outside count"). */
static char *identity_map(const char *own_map)
{
    FILE *file = fopen(own_map, "re");
    unsigned long inside, outside, count;
    if (!file) die_with_errno("reading %s", own_map);
    char *map = must_printf("%s", "");
    while (fscanf(file, "%lu %lu %lu", &inside, &outside, &count) == 3) {
        char *longer = must_printf("%s%lu %lu %lu\n", map, inside, inside, count);
        free(map);
        map = longer;
    }
    fclose(file);
    return map;
}

/* Maps whole ranges of ids. Only root may do that, and only from a process that has stayed outside.
 * Returns false when refused. */
static bool map_everything_from_outside(pid_t target, int start_fd)
{
    char start, *uids = identity_map("/proc/self/uid_map"),
                *gids = identity_map("/proc/self/gid_map");
    if (read(start_fd, &start, 1) != 1) return false;
    char *uid_map = must_printf("/proc/%d/uid_map", (int)target),
         *gid_map = must_printf("/proc/%d/gid_map", (int)target);
    if (!write_file(gid_map, gids) && !write_file(uid_map, uids)) return true;
    if (errno != EPERM && errno != EINVAL) die_with_errno("writing %s or %s", gid_map, uid_map);
    return false;
}

static void map_only_me(uid_t uid, gid_t gid)
{
    char *uid_line = must_printf("%u %u 1\n", uid, uid),
         *gid_line = must_printf("%u %u 1\n", gid, gid);
    if (write_file("/proc/self/uid_map", uid_line))
        die_with_errno("mapping user %u into the user namespace (uid_map)", uid);
    if (write_file("/proc/self/setgroups", "deny") && errno != ENOENT)
        die_with_errno("giving up setgroups in the user namespace");
    if (write_file("/proc/self/gid_map", gid_line))
        die_with_errno("mapping group %u into the user namespace (gid_map)", gid);
    free(uid_line);
    free(gid_line);
}

void userns_enter(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t me = getpid(), helper = 0;
    int start[2] = {-1, -1};
    if (uid == 0) {
        if (pipe2(start, O_CLOEXEC)) die_with_errno("a pipe");
        helper = fork();
        if (helper < 0) die_with_errno("starting the process that writes uid_map");
        if (helper == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(start[1]);
            _exit(map_everything_from_outside(me, start[0]) ? 0 : 1);
        }
        close(start[0]);
    }
    if (unshare(CLONE_NEWUSER)) die_with_errno("creating a user namespace");
    step("user namespace");
    bool mapped = false;
    if (helper) {
        int status = 1;
        (void)!write(start[1], "!", 1);
        close(start[1]);
        while (waitpid(helper, &status, 0) < 0 && errno == EINTR);
        if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SETUP)
            _exit(EXIT_SETUP); /* it has said why */
        mapped = status == 0;
    }
    if (!mapped) map_only_me(uid, gid);
    step("uid_map and gid_map");
}

void namespaces_probe(void)
{
    static const struct {
        int flag;
        const char *name;
    } kinds[] = {{CLONE_NEWNET, "network namespace"},
                 {CLONE_NEWPID, "PID namespace"},
                 {CLONE_NEWUTS, "UTS namespace"},
                 {CLONE_NEWIPC, "IPC namespace"},
                 {CLONE_NEWNS, "mount namespace"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int status = 0;
        pid_t child = fork();
        if (child < 0) die_with_errno("starting a process");
        if (child == 0) _exit(unshare(kinds[i].flag) ? errno : 0);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR);
        if (status) {
            errno = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
            die_with_errno("creating a %s", kinds[i].name);
        }
        step(kinds[i].name);
    }
}
