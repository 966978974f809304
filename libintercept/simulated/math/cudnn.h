/* simulated/math/cudnn.h - shared by the simulated rank's cuDNN files. */
#ifndef PH_SIMULATED_CUDNN_H
#define PH_SIMULATED_CUDNN_H
#include "base/api.h"
#include "work/cudnn.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- cudnn_real.c: NVIDIA's own library, which answers for a described GPU ---- */
bool ph_cudnn_real_available(void);
bool ph_cudnn_real_has(int descriptor_type);
/* Whether it takes an attribute. Values that are ours (descriptors, handles) are not shown to it,
 * and are taken to be good. */
bool ph_cudnn_real_takes(int descriptor_type, int name, int type, int64_t count,
                         const void *values);
/* Makes the twins of the descriptor and of all that it refers to. Returns a cudnnStatus_t. */
int ph_cudnn_real_make(struct ph_cudnn_descriptor *descriptor);
void ph_cudnn_real_destroy(void *real);
/* cudnnBackendGetAttribute on the twin. Descriptors in `values` are ours and get twins. */
int ph_cudnn_real_get(struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t requested,
                      int64_t *count, void *values);
void ph_cudnn_real_error(char *message, size_t size);

/* ---- cudnn.c ---- */
size_t ph_cudnn_release_number(void); /* the job's cuDNN, as cudnnGetVersion says it */
void *ph_cudnn_stream(const void *handle, bool *valid); /* the stream of a cudnnHandle_t */
/* Sets this thread's text for cudnnGetLastErrorString; returns `status`. */
int ph_cudnn_fail(int status, const char *format, ...) PH_PRINTF(2, 3);

#endif
