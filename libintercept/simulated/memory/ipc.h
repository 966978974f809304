/* ipc.h - what the core and the runtime API ask of simulated/memory/ipc.c. */
#ifndef PH_IPC_H
#define PH_IPC_H
#include "time/timeline.h"
#include <stdbool.h>
#include <stdint.h>

/* how many ranges of device memory are shared with other processes */
extern _Atomic int ph_ipc_ranges;
/* whether any of these bytes are: others may write there at any time */
bool ph_ipc_shared(uintptr_t low, uintptr_t high);
/* an allocation is given back: if it was shared as a whole, it no longer is */
void ph_ipc_freed(uintptr_t low, uintptr_t high);
void ph_ipc_recorded(const struct ph_event *event); /* a shared event: others may know its time */
/* a shared event is about to be used: what does its owner say? */
void ph_ipc_look(struct ph_event *event);
void ph_ipc_gone(struct ph_event *event);
#endif
