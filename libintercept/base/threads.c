/* base/threads.c - the state of this process's threads, as the kernel reports it.
 *
 * Why it exists: runs that repeat to the byte must wait until NCCL's watchdogs have finished a
 * round (time/watchdog.c). They must also tell a sleeping host thread from a slow one.
 * /proc/self/task shows both. */
#include "base/threads.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads /proc/self/task/TID/NAME. The text is empty when the file cannot be read. */
static void read_task(int tid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    text[got > 0 ? got : 0] = 0;
    if (fd >= 0) close(fd);
}

/* glibc has gettid since 2.30 only */
int ph_thread_id(void) { return (int)syscall(SYS_gettid); }

bool ph_thread_sleeps(int tid)
{
    char text[512];
    read_task(tid, "stat", text, sizeof text);
    /* the thread's name, before the bracket, may hold anything */
    const char *state = strrchr(text, ')');
    return state && state[1] == ' ' && state[2] == 'S';
}

/* pthread_join waits until the kernel clears the ended thread's id. It waits on a futex that is not
 * private to the process. */
bool ph_thread_joins(int tid, int other)
{
    char text[256];
    long number;
    unsigned long address, operation, expected;
    read_task(tid, "syscall", text, sizeof text);
    return sscanf(text, "%ld %lx %lx %lx", &number, &address, &operation, &expected) == 4 &&
           number == SYS_futex && (operation & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
           !(operation & FUTEX_PRIVATE_FLAG) && expected == (unsigned long)other;
}

uint64_t ph_thread_switches(int tid)
{
    char text[4096];
    read_task(tid, "status", text, sizeof text);
    const char *at = strstr(text, "\nvoluntary_ctxt_switches:");
    return at ? strtoull(at + strlen("\nvoluntary_ctxt_switches:"), NULL, 10) : 0;
}

bool ph_thread_ended(int tid)
{
    char text[8];
    read_task(tid, "comm", text, sizeof text);
    return !text[0];
}

bool ph_watcher_by_name(int tid)
{
    char name[32];
    read_task(tid, "comm", name, sizeof name);
    return strcmp(name, "pt_nccl_watchdg\n") == 0; /* set by PyTorch's c10d::ProcessGroupNCCL */
}

int ph_watchers(struct ph_watcher *found, int most)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return 0;
    for (struct dirent *entry; count < most && (entry = readdir(tasks));) {
        int tid = atoi(entry->d_name);
        if (tid > 0 && ph_watcher_by_name(tid))
            found[count++] = (struct ph_watcher){tid, ph_thread_switches(tid)};
    }
    closedir(tasks);
    return count;
}
