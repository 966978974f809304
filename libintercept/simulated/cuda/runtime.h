/* simulated/cuda/runtime.h - shared by the files of the runtime and the driver. */
#ifndef PH_SIMULATED_RUNTIME_H
#define PH_SIMULATED_RUNTIME_H
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stddef.h>

/* simulated/cuda/cudart.c: sets this thread's last error of the runtime API; returns `error` */
int ph_set_error(int error);
/* simulated/cuda/driver.c: the device's primary context exists from now on */
void ph_device_use(int device);
/* simulated/cuda/graph_api.c: a record or a wait became part of a capture, or was refused */
int ph_capture_called(enum ph_call call, const char *name, int answer);
/* simulated/memory/copies.c: one copy with its values, its time and its synchronisation */
int ph_copy(void *destination, const void *source, size_t bytes, void *stream, bool blocking);
#endif
