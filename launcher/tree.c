/* tree.c - removes what a run leaves behind: descendant processes and the run directory.
 *
 * Why it exists: without PID namespaces (isolation none) nothing else ends the processes that a job
 * leaves running. If the launcher is killed outright, nothing else deletes its directory. Whoever
 * deletes it may be faster than the kernel, which is still ending the run's processes. A rank would
 * then report a missing file, or write a new one. So the processes are killed first. */
#include "sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct process {
    pid_t pid, parent;
    bool below;
};

static bool read_process(const char *name, struct process *process)
{
    char path[300], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return false;
    text[length] = '\0';
    char state, *after = strrchr(text, ')'); /* the name in brackets may hold anything */
    int parent;
    if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z') return false;
    *process = (struct process){.pid = atoi(name), .parent = parent};
    return true;
}

/* Kills the descendants of `root` in one pass over /proc; false if there were none. If a process
 * forks meanwhile, the caller's next pass finds its child. */
static bool kill_once(pid_t root)
{
    struct process *all = NULL;
    size_t count = 0, capacity = 0;
    DIR *proc = opendir("/proc");
    if (!proc) die_with_errno("reading /proc");
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            all = realloc(all, capacity * sizeof *all);
            if (!all) die_with_errno("memory for the list of processes");
        }
        if (read_process(entry->d_name, &all[count])) count++;
    }
    closedir(proc);
    bool found = false;
    for (bool grew = true; grew;) {
        grew = false;
        for (size_t i = 0; i < count; i++) {
            bool below = all[i].parent == root;
            for (size_t j = 0; !below && j < count; j++)
                below = all[j].below && all[j].pid == all[i].parent;
            if (below && !all[i].below) all[i].below = grew = found = true;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (all[i].below) kill(all[i].pid, SIGKILL);
    free(all);
    return found;
}

bool kill_descendants(void)
{
    bool any = false;
    while (kill_once(getpid())) {
        any = true;
        while (waitpid(-1, NULL, WNOHANG) > 0);
    }
    return any;
}

static bool has_variable(const char *pid, const char *variable, size_t length)
{
    enum { MOST_BYTES = 1 << 20 };
    static char text[MOST_BYTES];
    char path[300];
    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false; /* another user's, or it has ended */
    size_t filled = 0;
    for (ssize_t got; (got = read(fd, text + filled, sizeof text - filled)) > 0;)
        filled += (size_t)got;
    close(fd);
    for (char *at = text; at < text + filled; at += strnlen(at, (size_t)(text + filled - at)) + 1)
        if ((size_t)(text + filled - at) >= length && memcmp(at, variable, length) == 0)
            return true;
    return false;
}

/* Kills every process whose environment has `variable` (NAME=VALUE); false if there is none. */
static bool kill_those_with(const char *variable)
{
    bool found = false;
    DIR *proc = opendir("/proc");
    if (!proc) return false;
    for (struct dirent *entry; (entry = readdir(proc));) {
        pid_t pid = atoi(entry->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        if (has_variable(entry->d_name, variable, strlen(variable) + 1))
            found |= kill(pid, SIGKILL) == 0;
    }
    closedir(proc);
    return found;
}

void kill_run(const char *folder)
{
    enum { TRIES = 1000, PAUSE_NS = 5000000 }; /* five seconds */
    char variable[4200];
    int length = snprintf(variable, sizeof variable, "PHANTORA_RUN_DIR=%s", folder);
    if (length >= (int)sizeof variable) return;
    for (int i = 0; i < TRIES && access(folder, F_OK) == 0 && kill_those_with(variable); i++)
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    remove(path);
    return 0;
}

void remove_tree(const char *path)
{
    enum { TRIES = 200, PAUSE_NS = 50000000 }; /* ten seconds */
    for (int i = 0; i < TRIES; i++) {
        nftw(path, remove_entry, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        if (access(path, F_OK) != 0) return;
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    }
}
