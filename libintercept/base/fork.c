/* base/fork.c - see base/fork.h. */
#include "base/fork.h"
#include "base/log.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST = 16 };
static void (*forgotten[MOST])(void);
static _Atomic int count;
static bool forked;
static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;

/* The linker's names for the ends of the section. */
extern char __start_ph_locks[] __attribute__((visibility("hidden"))),
    __stop_ph_locks[] __attribute__((visibility("hidden")));

static void in_child(void)
{
    /* the initialisers of glibc's mutexes and rwlocks are zero */
    memset(__start_ph_locks, 0, (size_t)(__stop_ph_locks - __start_ph_locks));
    for (int i = 0; i < count; i++) forgotten[i]();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

void ph_forget_in_child(void (*forget)(void))
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < count && forgotten[i] != forget) i++;
    if (i == MOST) ph_die("more than %d parts of the interceptor keep state across a fork", MOST);
    if (i == count) {
        forgotten[i] = forget;
        count++;
    }
    pthread_mutex_unlock(&lock);
}

void ph_forked_after_use(void) { forked = true; }

bool ph_forked(void) { return forked; }
