/* gpu_load.h - keeps the GPU as warm as in training while the simulation blocks the job. See
 * gpu_load.c. */
#ifndef PH_HEAT_H
#define PH_HEAT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* the leader has measured a first kernel: from now on the filler may run (only if kernels are
 * recorded) */
void ph_gpu_load_allow(void);
void ph_gpu_load_held(
    bool held); /* link/connection.c: a thread starts or stops waiting for an answer */
/* The job goes on. No filler runs when this returns, unless the GPU has not finished it after
 * milliseconds. Cheap when none runs. */
void ph_gpu_load_stop(void);
/* Not while a call is measured for the first time: its sample is kept even if other work overlaps
 * it. */
void ph_gpu_load_forbid(bool on);
/* The job gave the GPU work on a real stream, of about this duration in nanoseconds. */
void ph_gpu_load_saw(void *stream, uint64_t work_ns);
void ph_gpu_load_copied(void *stream, size_t bytes); /* by the simulated NCCL */
void ph_gpu_load_gone(void *stream);                 /* before it is destroyed */
/* Work that streams issue from here to ph_gpu_load_received may wait for another rank's result. */
uint64_t ph_gpu_load_issued(void);
void ph_gpu_load_receiving(void);
void ph_gpu_load_received(uint64_t issued);
/* the job needs memory: frees ours, for good; false: there is none, or not now */
bool ph_gpu_load_release(void);
void ph_gpu_load_end(void);    /* for good; waits for the filler */
uint64_t ph_gpu_load_ns(void); /* how long the filler has run */
void ph_gpu_load_reset(void);  /* in a forked child */
#endif
