/* base/host_calls.h - classes of calls that take host time (enum ph_call).
 *
 * Why it exists: what a call costs the host is known by class, and the job's own time before it is
 * recorded by class and place (time/host_model.c). */
#ifndef PH_HOST_CALLS_H
#define PH_HOST_CALLS_H
#include "base/protocol.gen.h"

/* "launch", "gemm", ... as in device.conf, HOST messages and the database */
static inline const char *ph_call_name(enum ph_call call) { return ph_call_labels[call]; }
#endif
