/* cufile.c - cuFile's transfers, refused.
 *
 * Why it exists: they return the number of bytes transferred, or an error as a negative number. The
 * generated stubs would return 0. */
#define PH_CLASS PH_REFUSED
#include "base/unsupported.h"

#define TRANSFER(name)                                                                     \
    PH_API(long, name,                                                                     \
           (void *file, void *memory, size_t bytes, long file_offset, long memory_offset)) \
    {                                                                                      \
        (void)file, (void)memory, (void)bytes, (void)file_offset, (void)memory_offset;     \
        ph_unsupported(#name);                                                             \
        return -PH_CUFILE_UNSUPPORTED;                                                     \
    }
TRANSFER(cuFileRead)
TRANSFER(cuFileWrite)
