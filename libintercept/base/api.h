/* base/api.h - how a function is exported, and what is said of it.
 *
 * Why it exists: a job sees nothing of this library but the functions that it exports. Each is
 * stated once, with what the job gets of it. */
#ifndef PH_API_H
#define PH_API_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a job gets of an exported function, stated beside the function: a file sets PH_CLASS before
 * its includes, and again where it changes. It is the section that the function lies in, so the
 * built library says it of every function, and docs/coverage.md is made from that
 * (tools/coverage.py). */
/* does what the real one does: state, time, and values as far as they are kept */
#define PH_SIMULATED "ph_simulated"
/* takes the time and memory of the real one; what it computes comes from the values library, or is
 * 0 */
#define PH_ACCOUNTED "ph_accounted"
/* accepted; on a GPU it changes at most speed or tools, here nothing */
#define PH_HINT "ph_hint"
#define PH_PASSED "ph_passed" /* NVIDIA's own library answers */
/* the API's "not supported", and a line on stderr and in the report */
#define PH_REFUSED "ph_refused"
#ifdef PH_CLASS
#define PH_EXPORT __attribute__((visibility("default"), section(PH_CLASS)))
#else /* for what is no function of NVIDIA's */
#define PH_EXPORT __attribute__((visibility("default")))
#endif
/* Declares and defines an exported function: -Wmissing-prototypes asks for a declaration, and no
 * header of ours holds one. */
#define PH_API(type, name, parameters) \
    PH_EXPORT type name parameters;    \
    PH_EXPORT type name parameters
#define PH_PRINTF(f, a) __attribute__((format(printf, f, a)))
#endif
