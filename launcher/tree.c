/* tree.c - removes what a run leaves behind: descendant processes and the run directory.
 *
 * Why it exists: without PID namespaces (isolation none) nothing else ends the processes that a job
 * leaves running. If the launcher is killed outright, nothing else deletes its directory. Whoever
 * deletes it may be faster than the kernel ends the run's processes, which still write there. */
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
