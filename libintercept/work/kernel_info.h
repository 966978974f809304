/* work/kernel_info.h - what a kernel's own code says about it: parameter layout, registers, shared
 * memory.
 *
 * Why it exists: a launch hands over raw parameter bytes, and which of them are pointers is only
 * written in the GPU code. phantora_ns/kernels/binary/fatbin.py reads it once per installation into the
 * file that PHANTORA_KERNEL_INFO names; here it is mapped and searched as it is. The structures are
 * the file's own. */
#ifndef PH_KERNELINFO_H
#define PH_KERNELINFO_H
#include <stddef.h>
#include <stdint.h>

struct ph_kernel_param {
    uint16_t offset, size; /* bytes, from the start of the parameter block */
};

struct ph_kernel_info {
    uint64_t hash;
    uint32_t name, name_bytes, first_param;
    uint32_t static_shared_bytes;
    uint32_t stack_bytes; /* local memory per thread */
    uint16_t param_count, param_bytes;
    uint16_t max_threads; /* per block */
    uint16_t registers;   /* per thread */
    uint32_t reserved;
};
_Static_assert(sizeof(struct ph_kernel_info) == 40, "phantora_ns/kernels/binary/fatbin.py");
_Static_assert(offsetof(struct ph_kernel_info, registers) == 34, "phantora_ns/kernels/binary/fatbin.py");

/* Both return pointers into the mapped file, valid for the life of the process; NULL when the
 * kernel is unknown (or no file is named). Thread-safe, no lock after the first call; about 1 us
 * per lookup, so callers keep the answer. */
const struct ph_kernel_info *ph_kernel_info(const char *mangled_name);
const struct ph_kernel_param *ph_kernel_params(const struct ph_kernel_info *info);

#endif
