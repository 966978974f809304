/* modules.h - what the machine code of kernels that the job loaded does (work/accesses.h). */
#ifndef PH_LEADER_MODULES_H
#define PH_LEADER_MODULES_H
#include "work/accesses.h"

/* Of a loaded function; unknown for code that did not come as a cubin. */
struct ph_accesses ph_lead_accesses(void *function, const char *name);
/* kernels.c: after code is unloaded, its handle may be reused for another kernel */
void ph_lead_forget_loaded(void);
#endif
