/* nvshmem.c - the start of NVSHMEM, refused.
 *
 * Why it exists: NVSHMEM's kernels communicate by themselves, which is not simulated, and its
 * start-up ends the process when it finds no GPU that it can drive. PyTorch first asks for an
 * identity, and turns an error code from that call into an exception. */
#define PH_CLASS PH_REFUSED
#include "base/log.h"

enum { NVSHMEM_NOT_SUPPORTED = 3 }; /* NVSHMEMX_ERROR_NOT_SUPPORTED (nvshmemx_error.h) */

PH_API(int, nvshmemid_hostlib_init_attr,
       (int requested, int *provided, unsigned flags, void *attributes, void *version,
        void *device_init))
{
    (void)requested, (void)provided, (void)flags, (void)attributes, (void)version,
        (void)device_init;
    ph_unsupported("nvshmemid_hostlib_init_attr");
    return NVSHMEM_NOT_SUPPORTED;
}

PH_API(int, nvshmemx_get_uniqueid, (void *identity))
{
    (void)identity;
    ph_unsupported("nvshmemx_get_uniqueid");
    return NVSHMEM_NOT_SUPPORTED;
}
