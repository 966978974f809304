/* heat.h - a GPU that stays as warm as in training while the simulation holds the job up. See
 * heat.c. */
#ifndef PH_HEAT_H
#define PH_HEAT_H
#include "base/core.h"

/* the leader has measured something: from here on there may be heating (kernels are recorded) */
void ph_gpu_load_allow(void);
void ph_gpu_load_held(
    bool held); /* link/connection.c: a thread begins, or ends, to wait for an answer */
/* The job goes on: no filler runs when this returns, unless the GPU has not let go of it for
 * milliseconds. Cheap when there is none. */
void ph_gpu_load_stop(void);
/* Not while what the GPU does is being measured for the first time: such samples are kept whatever
 * runs beside them. */
void ph_gpu_load_forbid(bool on);
/* Work that the GPU was given on a real stream, and about how long it takes, nanoseconds. */
void ph_gpu_load_saw(void *stream, uint64_t work_ns);
void ph_gpu_load_copied(void *stream, size_t bytes); /* by the simulated NCCL */
void ph_gpu_load_gone(void *stream);                 /* before it is destroyed */
/* What streams issue from here to ph_gpu_load_received may wait for a result of others. */
uint64_t ph_gpu_load_issued(void);
void ph_gpu_load_receiving(void);
void ph_gpu_load_received(uint64_t issued);
/* the job lacks memory: gives ours back, for good; false: there is none, or not now */
bool ph_gpu_load_release(void);
void ph_gpu_load_end(void);    /* for good; waits for the filler */
uint64_t ph_gpu_load_ns(void); /* how long the GPU has been heated */
void ph_gpu_load_reset(void);  /* in a forked child */
#endif
