/* library_handle.h - the handle of a math library whose only state is a stream.
 *
 * Why it exists: cuSOLVER, cuSPARSE and cuDNN need the same few lines. A magic number tells whose
 * handle it is, and that it is still in use. */
#ifndef PH_LIBRARY_HANDLE_H
#define PH_LIBRARY_HANDLE_H
#include "base/fork.h"
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct ph_library_handle {
    uint32_t magic;
    void *stream;
};

static inline struct ph_library_handle *ph_library_handle_new(uint32_t magic)
{
    struct ph_library_handle *handle = calloc(1, sizeof *handle);
    if (handle) handle->magic = magic;
    return handle;
}

/* NULL when `pointer` is not such a handle. */
static inline struct ph_library_handle *ph_library_handle(const void *pointer, uint32_t magic)
{
    struct ph_library_handle *handle = (struct ph_library_handle *)pointer;
    return handle && handle->magic == magic && !ph_forked() ? handle : NULL;
}

static inline void ph_library_handle_free(struct ph_library_handle *handle)
{
    handle->magic = 0;
    free(handle);
}
#endif
