/* simulated/cuda/runtime.h - what the files of the runtime and the driver share. */
#ifndef PH_SIMULATED_RUNTIME_H
#define PH_SIMULATED_RUNTIME_H
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stddef.h>

/* the last error of the runtime API, per thread (simulated/cuda/cudart.c); returns `error` */
int ph_set_error(int error);
/* A driver function by its name without suffix: the second version is the one that current headers
 * mean, unless only the first is answered. */
void *ph_driver_symbol(const char *name); /* simulated/cuda/driver.c */
void ph_device_use(
    int device); /* simulated/cuda/driver.c: its primary context exists from now on */
/* simulated/cuda/graph_api.c: a record or a wait that became part of a capture, or was refused */
int ph_capture_called(enum ph_call call, const char *name, int answer);
/* simulated/memory/copies.c: one copy with its values, its time and its synchronisation */
int ph_copy(void *destination, const void *source, size_t bytes, void *stream, bool blocking);
#endif
