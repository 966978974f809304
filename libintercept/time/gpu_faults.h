/* time/gpu_faults.h - GPUs that are slower than their peers (time/gpu_faults.c). */
#ifndef PH_GPU_FAULTS_H
#define PH_GPU_FAULTS_H
#include <stdint.h>

void ph_gpu_faults_read(void);
/* the duration after the GPU's faults at `now` */
uint64_t ph_gpu_fault_slows(int device, uint64_t duration_ns, uint64_t now);
#endif
