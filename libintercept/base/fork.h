/* base/fork.h - the state that a forked child must forget.
 *
 * Why it exists: a child shares neither the parent's connection nor its streams. It starts anew
 * when it uses CUDA. Each file that keeps such state registers a function that clears it. */
#ifndef PH_FORK_H
#define PH_FORK_H

/* Registers `forget`: every child forked from now on calls it. Functions run in the order of their
 * registration. Registering a function twice has no effect. Thread-safe. */
void ph_forget_in_child(void (*forget)(void));
#endif
