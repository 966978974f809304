/* base/threads.h - what the kernel says of this process's threads (base/threads.c). */
#ifndef PH_THREADS_H
#define PH_THREADS_H
#include <stdbool.h>
#include <stdint.h>

/* a thread, and how often it has gone to sleep so far */
struct ph_watcher {
    int tid;
    uint64_t switches;
};
bool ph_thread_sleeps(int tid); /* false as well for one that is gone */
/* waits for `other` to end; false where the kernel does not tell */
bool ph_thread_joins(int tid, int other);
uint64_t ph_thread_switches(int tid);
int ph_watchers(struct ph_watcher *found, int most); /* NCCL's watchdogs in this process */
#endif
