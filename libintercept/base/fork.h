/* base/fork.h - what a forked child must forget.
 *
 * Why it exists: a child shares neither the parent's connection nor its streams, and a lock that
 * another thread of the parent held stays locked in it for ever. If the parent had used CUDA, the
 * child cannot use it, as with the real driver. Otherwise it starts anew. */
#ifndef PH_FORK_H
#define PH_FORK_H
#include <stdbool.h>

/* A lock that is free in a forked child, whoever held it in the parent:
 * `static pthread_mutex_t PH_FREE_IN_CHILD lock = PTHREAD_MUTEX_INITIALIZER;` */
#define PH_FREE_IN_CHILD __attribute__((section("ph_locks")))

/* Registers `forget`: every child forked from now on calls it. Functions run in the order of their
 * registration. Registering a function twice has no effect. Thread-safe. */
void ph_forget_in_child(void (*forget)(void));

/* In a child: the parent had used CUDA. */
void ph_forked_after_use(void);
/* Whether a process that had used CUDA was forked into this one. Calls that need a context then
 * return CUDA_NOT_INITIALIZED. */
bool ph_forked(void);
#endif
