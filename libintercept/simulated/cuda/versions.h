/* simulated/cuda/versions.h - what differs between the CUDA versions that a job may be built for.
 *
 * Why it exists: the wheels of PyTorch bring CUDA 12 or 13, and this library stands in for both.
 * The tables (versions.gen.h) come from NVIDIA's headers. Rule: which major a call belongs to is
 * the caller's (PH_API_12, PH_API_13), never a property of the process. */
#ifndef PH_VERSIONS_H
#define PH_VERSIONS_H
#include <stddef.h>

struct ph_property { /* a number in cudaDeviceProp that is a CUdevice_attribute */
    unsigned short offset, bytes, attribute;
};
struct ph_properties { /* cudaDeviceProp of one major */
    size_t bytes, uuid, total_memory;
    const struct ph_property *property;
    size_t count;
};
const struct ph_properties *ph_properties_layout(int major);
size_t ph_pointer_attributes_bytes(int major); /* cudaPointerAttributes */

/* The version of the runtime that the process has loaded, as cudaRuntimeGetVersion gives it: 12080
 * for CUDA 12.8. Warns once if it has loaded none of this major. */
int ph_runtime_version(int major);

/* The version of the cuBLAS that the process has loaded, as cublasLtGetVersion gives it: 120804. */
int ph_blas_version(void);

/* The driver's version, on the machine on which the H200's data was recorded. It runs programs of
 * CUDA 12 and 13. */
enum { PH_DRIVER_VERSION = 13000 };

/* A driver function as a program of that version means it: the newest of name, name_v2, name_v3...
 * that this version has. NULL: no such function. */
void *ph_driver_symbol(const char *name, int version);
#endif
