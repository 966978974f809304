/* work/kernel_info.h - what a kernel's own code says about it: parameter layout, registers, shared
 * memory.
 *
 * Why it exists: a launch passes raw parameter bytes, and only the GPU code says which of them are
 * pointers. phantora_ns/kernels/binary/fatbin.py reads the GPU code once per installation. It
 * writes the file that PHANTORA_KERNEL_INFO names, and this module maps and searches that file. */
#ifndef PH_KERNELINFO_H
#define PH_KERNELINFO_H
#include "base/protocol.gen.h"

/* Both return pointers into the mapped file, which stay valid for the life of the process. NULL:
 * the kernel is unknown, or no file is named. Thread-safe; no lock after the first call. A lookup
 * takes about 1 us, so callers keep the result. */
const struct ph_kernel_info *ph_kernel_info(const char *mangled_name);
const struct ph_kernel_param *ph_kernel_params(const struct ph_kernel_info *info);

#endif
