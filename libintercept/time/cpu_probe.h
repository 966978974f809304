/* time/cpu_probe.h - how fast this machine runs code like a framework's at this moment
 * (time/cpu_probe.c). */
#ifndef PH_CPU_PROBE_H
#define PH_CPU_PROBE_H
#include <stdint.h>

/* Runs the probe, about 0.1 ms, and returns the CPU time in ns that it took this thread. Called
 * with ph_lock held. */
uint64_t ph_cpu_probe(void);
#endif
