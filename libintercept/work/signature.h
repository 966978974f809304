/* work/signature.h - signatures: how the kernel table describes a launch, a copy or a fill
 * (work/signature.c, work/launch_signature.c). A leader and a simulated rank make the same bytes
 * here. */
#ifndef PH_SIGNATURE_H
#define PH_SIGNATURE_H
#include "base/host_calls.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "work/accesses.h"
#include "work/cudart.h"
#include "work/kernel_info.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kernel table's description of a piece of GPU work: [kind, fields] (docs/wire-protocol.md,
 * Signatures). */
struct ph_signature {
    enum ph_signature_kind kind;
    enum ph_call call;     /* the class of the call that starts the work */
    bool copies_inside;    /* a copy inside one GPU */
    uint32_t count;        /* fields; 0: there is no signature */
    struct ph_pack fields; /* packed one after the other, without the array's header */
    uint64_t key;          /* FNV-1a of the packed [kind, fields] */
    /* of a kernel launch, valid during the launch only: the hub's estimators receive them */
    const struct ph_kernel_facts *facts;
    void **arguments;
};
/* Begin and end a signature. The caller packs `count` fields into `fields` between the two calls.
 * Memory of an earlier signature is reused. */
void ph_signature_begin(struct ph_signature *signature, enum ph_signature_kind kind,
                        uint32_t count);
void ph_signature_end(struct ph_signature *signature);
/* ph_signature_header_hash hashes what precedes the fields. ph_signature_end_after ends a signature
 * whose fields before `from` are already part of `hash`. */
uint64_t ph_signature_header_hash(const struct ph_signature *signature);
void ph_signature_end_after(struct ph_signature *signature, uint64_t hash, size_t from);
void ph_signature_pack(struct ph_pack *pack, const struct ph_signature *signature);
/* Copies all but the launch's facts and arguments. */
void ph_signature_copy(struct ph_signature *to, const struct ph_signature *from);
void ph_signature_free(struct ph_signature *signature);
/* the name of the call that usually starts such work */
const char *ph_signature_call(const struct ph_signature *signature);
/* ph_trace_launch and ph_trace_replayed for a signature */
void ph_signature_trace(const struct ph_signature *signature);
void ph_signature_trace_replayed(const struct ph_signature *signature);

/* ---- kernels ---- */
struct ph_launch {
    struct ph_dim3 grid, block, cluster;
    size_t shared_bytes;
    void *stream;
};
struct ph_packed_name;     /* a kernel's name as packed in signatures, and its hash */
struct ph_runtime_launch { /* cudaLaunchConfig_t */
    struct ph_dim3 grid, block;
    size_t shared_bytes;
    void *stream;
    struct ph_launch_attribute *attributes;
    unsigned attribute_count;
};
struct ph_driver_launch { /* CUlaunchConfig */
    struct ph_dim3 grid, block;
    unsigned shared_bytes;
    void *stream;
    struct ph_launch_attribute *attributes;
    unsigned attribute_count;
};
struct ph_launch ph_launch_of_runtime(const struct ph_runtime_launch *config);
struct ph_launch ph_launch_of_driver(const struct ph_driver_launch *config);
struct ph_kernel_facts {
    bool known;
    unsigned registers, max_threads, static_shared, local_bytes;
    unsigned param_count;
    const struct ph_kernel_param *params;
    struct ph_packed_name *_Atomic name; /* NULL: not packed yet */
    struct ph_accesses accesses;         /* of a kernel that was compiled at run time */
};
/* The first launch stores the packed name in `facts`. */
void ph_launch_signature(struct ph_signature *signature, const char *name,
                         struct ph_kernel_facts *facts, const struct ph_launch *launch,
                         void **arguments);
/* LOOKUP's `context` of a launch: the operator that encloses it, else what its machine code
 * accesses, else nil */
void ph_pack_launch_context(struct ph_pack *pack, const struct ph_signature *signature);
/* the launch's parameter bytes with addresses zeroed; none for other work */
void ph_pack_parameters(struct ph_pack *pack, const struct ph_signature *signature);
/* `op`: ph_memory_op; `from` and `to`: ph_memory_kind */
void ph_memory_signature(struct ph_signature *signature, int op, uint64_t bytes, int from, int to);
/* whether the host waits for the copy */
bool ph_copy_waits(uint64_t bytes, int from, int to, bool blocking);
#endif
