/* time/untold.h - vertices whose times the hub has not told yet (time/untold.c). ph_lock is held.
 */
#ifndef PH_UNTOLD_H
#define PH_UNTOLD_H
#include <stdint.h>

void ph_untold_start(void); /* the process joins the run */
/* A new vertex, which is the end of a launch or has been named. */
void ph_untold_add(uint64_t vertex);
/* The new vertex is the end of a launch that begins no earlier than `begin`. `alike` is the same
 * for all launches that take the same time when nothing else goes on; 0: for none. */
void ph_untold_launch(uint64_t vertex, uint64_t begin, uint64_t alike);
/* The hub has told that the launch takes at least so long; 0: it has not. */
void ph_untold_least(uint64_t vertex, uint64_t ns);
/* The oldest vertices of which it is not known here when they are, or that they are over by `now`.
 * Puts the first `room` of them into `vertices`, and returns how many these are. */
uint32_t ph_untold_oldest(uint64_t *vertices, uint32_t room, uint64_t now);
#endif
