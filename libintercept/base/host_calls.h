/* base/host_calls.h - classes of calls that take host time (enum ph_call).
 *
 * Why it exists: each class has a host cost. The job's own time before a call is recorded by class
 * and call site (time/host_model.c). */
#ifndef PH_HOST_CALLS_H
#define PH_HOST_CALLS_H
#include "base/protocol.gen.h"

/* "launch", "gemm", ...: the names in device.conf, HOST messages and the database */
static inline const char *ph_call_name(enum ph_call call) { return ph_call_labels[call]; }
#endif
