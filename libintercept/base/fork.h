/* base/fork.h - what a forked child must forget.
 *
 * Why it exists: the child shares neither the parent's connection nor its streams. It starts anew
 * when it touches CUDA. Each file that keeps such state says how it is forgotten. */
#ifndef PH_FORK_H
#define PH_FORK_H

/* Calls `forget` in every forked child from now on, in the order of the first calls of this
 * function. A second call with the same function does nothing. Thread-safe. */
void ph_forget_in_child(void (*forget)(void));
#endif
