/* base/fork.c - see base/fork.h. */
#include "base/fork.h"
#include "base/log.h"
#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 16 };
static void (*forgotten[MOST])(void);
static _Atomic int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < count; i++) forgotten[i]();
}

void ph_forget_in_child(void (*forget)(void))
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < count && forgotten[i] != forget) i++;
    if (i == MOST) ph_die("more than %d parts of the interceptor keep state across a fork", MOST);
    if (i == count) {
        if (count == 0) pthread_atfork(NULL, NULL, in_child);
        forgotten[i] = forget;
        count++;
    }
    pthread_mutex_unlock(&lock);
}
