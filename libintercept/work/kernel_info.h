/* work/kernel_info.h - what a kernel's own code says about it: parameter layout, registers, shared
 * memory.
 *
 * Why it exists: a launch hands over raw parameter bytes, and which of them are pointers is only
 * written in the GPU code. phantora_ns/kernels/binary/fatbin.py reads it once per installation into
 * the file that PHANTORA_KERNEL_INFO names; here it is mapped and searched as it is. */
#ifndef PH_KERNELINFO_H
#define PH_KERNELINFO_H
#include "base/protocol.gen.h"

/* Both return pointers into the mapped file, valid for the life of the process; NULL when the
 * kernel is unknown (or no file is named). Thread-safe, no lock after the first call; about 1 us
 * per lookup, so callers keep the answer. */
const struct ph_kernel_info *ph_kernel_info(const char *mangled_name);
const struct ph_kernel_param *ph_kernel_params(const struct ph_kernel_info *info);

#endif
