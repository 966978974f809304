/* leader.h - the interface between the parts of the leader's library (docs/leading.md).
 *
 * Why it exists: the wrappers (kernels, library calls, copies, streams, devices, NCCL) only
 * translate. measure.c times calls, and streams.c keeps the shadows of real handles. Rule: a
 * wrapper builds the signature with the simulated rank's own code, and calls the real function
 * exactly once between ph_lead_begin and ph_lead_end. */
#ifndef PH_LEADER_H
#define PH_LEADER_H
#include "time/timeline.h"
#include "work/signature.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- real.c: the libraries below ---- */
/* The next definition of `name` after this library, looked up once per call site. Without one
 * ph_real exits with one line that names the function; ph_real_maybe returns NULL. Both find
 * functions of libcuda.so.1, libcudart and the CUDA libraries, in the global scope or opened by
 * name. Thread-safe. */
void *ph_real(const char *name);
void *ph_real_maybe(const char *name);
bool ph_real_loaded(const char *name); /* whether there is one without loading a library */
/* PH_REAL(cudaMalloc)(&pointer, bytes): a prototype of `function` gives the type. */
#define PH_REAL(function)                                                       \
    (__extension__({                                                            \
        static __typeof__(&function) real_;                                     \
        __typeof__(&function) now_ = __atomic_load_n(&real_, __ATOMIC_RELAXED); \
        if (!now_)                                                              \
            now_ = (__typeof__(&function))ph_real(#function),                   \
            __atomic_store_n(&real_, now_, __ATOMIC_RELAXED);                   \
        now_;                                                                   \
    }))

/* Once: reads which GPUs the job selects with CUDA_VISIBLE_DEVICES, then sets the machine's own
 * list for the driver (devices.c). */
void ph_lead_environment(void);

/* ---- measure.c: how a call is timed ---- */
/* Before the real call: copies the signature and the operator context, pushes an external
 * correlation id, and charges the modelled host cost of a launch. `stream` is the real handle.
 * Returns a token, never 0. */
uint64_t ph_lead_begin(void *stream, const struct ph_signature *signature);
/* After the real call: finds the duration (cache, table, or else by waiting for the stream and
 * reading CUPTI) and puts it on the stream's shadow. */
void ph_lead_end(uint64_t token);
/* What this leader records (PHANTORA_LEAD_RECORD): kernels, or, without CUPTI, host costs or
 * values. Exits with one line for another word. */
enum ph_recorded { PH_RECORD_KERNELS, PH_RECORD_HOST, PH_RECORD_VALUES };
enum ph_recorded ph_lead_records(void);
bool ph_lead_measures(void); /* kernels */
/* Calls of this thread are not the job's: they are neither observed nor counted. */
void ph_lead_not_the_job(void);
/* Between true and false (per thread, may nest) GPU work is the simulated NCCL's own. It gives no
 * samples, and neither does work that it overlaps. */
void ph_lead_copying(bool on);

/* ---- streams.c: shadows ---- */
/* The shadow of a real stream handle (0, 1 and 2 are the default streams). Never NULL: an unknown
 * stream of another library gets its shadow here. */
struct ph_stream *ph_shadow_stream(void *real_stream);
/* Before every real call that may wait for the GPU. The GPU may wait for other ranks' data; if the
 * hub did not know that this rank waits too, no rank would advance. The host clock stands still.
 * Costs an atomic load when no result is pending. */
void ph_lead_settle(void *real_stream);
/* cudaStreamSynchronize of the real stream after ph_lead_settle, with the host clock standing
 * still. Exits with one line when it fails. */
void ph_lead_wait_stream(void *real_stream);
/* Whether `real_stream` is being captured into a graph. Its calls are then not observed; a warning
 * says so once. */
bool ph_lead_capturing(void *real_stream);
int ph_lead_captures(void); /* under way, or about to begin */

/* ---- nccl_data.c ---- */
int ph_lead_awaited(void);      /* pending results of small collectives that the GPU may wait for */
bool ph_lead_keeps_order(void); /* host functions run in the order of their stream */

/* ---- measure.c ---- */
bool ph_lead_ending(void); /* the process is ending */

/* ---- pinned.c ---- */
struct ph_lead_pinned {
    struct ph_lead_pinned *next;
    unsigned class;
    unsigned char *bytes;
};
/* at least `bytes`; may wait for what `stream` waits for */
struct ph_lead_pinned *ph_lead_pin(size_t bytes, void *stream);
void ph_lead_unpin(struct ph_lead_pinned *block); /* also in a host function */

/* ---- recorded_values.c ---- */
bool ph_lead_keeps_values(void);
/* The host reads `bytes` of the GPU's memory into `host`, by a copy that has been issued to
 * `stream`, or that is `there` already. */
void ph_lead_keep_read(const void *host, size_t bytes, void *stream, bool there);

/* ---- backend.c ---- */
/* where the real library says that it points to */
enum ph_memory_kind ph_lead_memory_kind(const void *pointer);

/* ---- devices.c ---- */
#define PH_REAL_DEVICE 0  /* every logical ordinal stands for this real one */
int ph_lead_device(void); /* this thread's logical ordinal: 0 .. PHANTORA_GPUS_PER_NODE - 1 */
#endif
