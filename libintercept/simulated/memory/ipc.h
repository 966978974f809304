/* ipc.h - what the core and the runtime API need from simulated/memory/ipc.c. */
#ifndef PH_IPC_H
#define PH_IPC_H
#include "time/timeline.h"
#include <stdbool.h>
#include <stdint.h>

/* how many ranges of device memory are shared with other processes */
extern _Atomic int ph_ipc_ranges;
/* Whether any of these bytes is shared: other processes may write there at any time. */
bool ph_ipc_shared(uintptr_t low, uintptr_t high);
/* An allocation is freed. If it was shared as a whole, it no longer is. */
void ph_ipc_freed(uintptr_t low, uintptr_t high);
/* records the time of a shared event for other processes */
void ph_ipc_recorded(const struct ph_event *event);
/* before a shared event is used: takes over what its owner recorded */
void ph_ipc_look(struct ph_event *event);
void ph_ipc_gone(struct ph_event *event);
#endif
