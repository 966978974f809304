/* packing.c - packs the signature of a kernel, over and over.
 *
 * Why it exists: every new signature and every message is packed by base/msgpack.c, whose
 * functions no library exports. */
#include "base/log.h"
#include "base/msgpack.h"
#include <stdio.h>
#include <stdlib.h>

void ph_die(const char *format, ...)
{
    fputs(format, stderr);
    abort();
}

size_t pack_signatures(unsigned count);

size_t pack_signatures(unsigned count)
{
    struct ph_pack pack = {0};
    for (unsigned i = 0; i < count; i++) {
        pack.length = 0;
        ph_pack_array(&pack, 2);
        ph_pack_uint(&pack, 1);
        ph_pack_array(&pack, 11);
        ph_pack_str(&pack, "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI"
                           "fEESt5arrayIPcLm1EEEEviT0_T1_");
        for (unsigned field = 0; field < 9; field++) ph_pack_uint(&pack, (i << field) & 0xffff);
        ph_pack_bin(&pack, "identity", 8);
    }
    size_t length = pack.length;
    ph_pack_free(&pack);
    return length;
}
