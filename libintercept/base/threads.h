/* base/threads.h - the state of this process's threads, as the kernel reports it (base/threads.c).
 */
#ifndef PH_THREADS_H
#define PH_THREADS_H
#include <stdbool.h>
#include <stdint.h>

/* a thread, and its voluntary context switches so far */
struct ph_watcher {
    int tid;
    uint64_t switches;
};
int ph_thread_id(void);         /* the calling thread's */
bool ph_thread_sleeps(int tid); /* also false for a thread that has ended */
/* Whether `tid` waits for thread `other` to end. False where the kernel does not show it. */
bool ph_thread_joins(int tid, int other);
uint64_t ph_thread_switches(int tid);
bool ph_thread_ended(int tid);
/* PyTorch names the watchdogs of its older process group. Finds these threads. */
int ph_watchers(struct ph_watcher *found, int most);
bool ph_watcher_by_name(int tid);
#endif
