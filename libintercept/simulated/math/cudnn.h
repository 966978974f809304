/* simulated/math/cudnn.h - what the simulated rank's cuDNN files share. */
#ifndef PH_SIMULATED_CUDNN_H
#define PH_SIMULATED_CUDNN_H
#include "base/api.h"
#include "work/cudnn.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- simulated/math/cudnn_real.c: NVIDIA's own library, asked about a GPU that is described to it
 * ----
 */
bool ph_cudnn_real_available(void);
/* Makes the descriptor's twin with all it refers to; returns a cudnnStatus_t. */
int ph_cudnn_real_make(struct ph_cudnn_descriptor *descriptor);
void ph_cudnn_real_destroy(void *real);
/* cudnnBackendGetAttribute on the twin; descriptors in `values` are ours and get twins. */
int ph_cudnn_real_get(struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t requested,
                      int64_t *count, void *values);
void ph_cudnn_real_error(char *message, size_t size);

/* ---- simulated/math/cudnn.c ---- */
void *ph_cudnn_stream(const void *handle, bool *valid); /* the stream of a cudnnHandle_t */
/* Remembers what cudnnGetLastErrorString says of this thread, returns `status`. */
int ph_cudnn_fail(int status, const char *format, ...) PH_PRINTF(2, 3);

#endif
