/* base/api.h - how a function is exported, and the support class it states.
 *
 * Why it exists: a job sees only the functions that this library exports. Each of them is stated
 * once, together with what the job gets from it. */
#ifndef PH_API_H
#define PH_API_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The support class of an exported function: what the job gets from it. A file defines PH_CLASS
 * before its includes and redefines it where the class changes. The class is the ELF section of the
 * function, so the built library records it for every function. tools/coverage.py makes
 * docs/coverage.md from these sections. */
/* Behaves like the real function: state, time, and the values that are kept. */
#define PH_SIMULATED "ph_simulated"
/* Takes the time and memory of the real function. Its results come from the values library or are
 * 0. */
#define PH_ACCOUNTED "ph_accounted"
/* Accepted without effect. On a GPU it changes only speed or tools. */
#define PH_HINT "ph_hint"
#define PH_PASSED "ph_passed" /* NVIDIA's own library answers */
/* Returns the API's "not supported" code, and writes a line on stderr and in the report. */
#define PH_REFUSED "ph_refused"
#ifdef PH_CLASS
#define PH_EXPORT __attribute__((visibility("default"), section(PH_CLASS)))
#else /* for functions that are not NVIDIA's */
#define PH_EXPORT __attribute__((visibility("default")))
#endif
/* Declares and defines an exported function. The declaration satisfies -Wmissing-prototypes: no
 * header of ours declares these functions. */
#define PH_API(type, name, parameters) \
    PH_EXPORT type name parameters;    \
    PH_EXPORT type name parameters
/* A function of the runtime that CUDA 12 and 13 give other parameters under one name. The
 * definition states whose it is. NVIDIA versions libcudart's symbols by its soname, so the dynamic
 * linker picks the definition of the major that the caller was linked against; lookup.c does so for
 * lookups by name. A caller that was linked against neither gets CUDA 13's. */
#define PH_API_12(type, name, parameters) PH_API_OF(12, "@", type, name, parameters)
#define PH_API_13(type, name, parameters) PH_API_OF(13, "@@", type, name, parameters)
#define PH_API_OF(major, at, type, name, parameters)                              \
    __asm__(".symver ph_" #name "_" #major ", " #name at "libcudart.so." #major); \
    PH_API(type, ph_##name##_##major, parameters)
#define PH_PRINTF(f, a) __attribute__((format(printf, f, a)))
#endif
