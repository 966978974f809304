/* work/launch_signature.c - the signatures of launches, copies and fills, and their trace records.
 *
 * Why it exists: nothing in a signature may depend on the process. So signatures hold no addresses
 * and no uninitialised bytes. */
#include "backend.h"
#include "base/fnv1a.h"
#include "base/log.h"
#include "time/operators.h"
#include "trace/trace_log.h"
#include "work/kernel_name.h"
#include "work/signature.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* PARAM_BYTES: CUDA's limit since 12.1 is 32,764 */
enum { KERNEL_FIELDS = 12, PARAM_BYTES = 32768, SMALL_INTEGERS = 16, STAGED_BYTES = 65536 };

/* ---- kernels ---- */
/* Copies the parameter bytes, with device addresses and pinned host addresses zeroed. The remaining
 * bytes are scalars, and bytes that the caller left uninitialised in its structures. They serve
 * estimators that know a kernel's layout, but they cannot identify a launch. */
static size_t scalars_of(const struct ph_kernel_facts *facts, void **arguments,
                         unsigned char *bytes)
{
    size_t total = 0;
    for (unsigned i = 0; i < facts->param_count; i++) {
        const struct ph_kernel_param *param = &facts->params[i];
        if ((size_t)param->offset + param->size > PARAM_BYTES) return 0;
        if (param->offset > total) memset(bytes + total, 0, param->offset - total);
        memcpy(bytes + param->offset, arguments[i], param->size);
        if ((size_t)param->offset + param->size > total)
            total = (size_t)param->offset + param->size;
    }
    struct ph_allocation found;
    for (size_t at = 0; at + 8 <= total; at += 8) {
        void *word;
        memcpy(&word, bytes + at, 8);
        if ((uintptr_t)word >= PH_VIRTUAL_BASE && (uintptr_t)word < 0x800000000000ull &&
            (ph_backend.find(word, &found) || ph_backend.find((char *)word - 1, &found)))
            memset(bytes + at, 0, 8);
    }
    return total;
}

void ph_pack_parameters(struct ph_pack *pack, const struct ph_signature *signature)
{
    unsigned char bytes[PARAM_BYTES];
    const struct ph_kernel_facts *facts = signature->facts;
    ph_pack_bin(pack, bytes,
                facts && facts->known && signature->arguments
                    ? scalars_of(facts, signature->arguments, bytes)
                    : 0);
}

void ph_pack_launch_context(struct ph_pack *pack, const struct ph_signature *signature)
{
    const struct ph_kernel_facts *facts = signature->facts;
    if (facts && facts->accesses.known && !ph_operator_encloses())
        ph_accesses_pack(pack, &facts->accesses);
    else
        ph_pack_context(pack);
}

/* The identity of a launch that no framework operator encloses: a launch of Triton, or any launch
 * without the values library. It consists of the 4-byte and 8-byte parameters, read as integers.
 * Values from 2^29 upwards become UINT32_MAX. Sizes are smaller than that, and a 32-bit float read
 * as an integer is larger. */
static size_t integers_of(const struct ph_kernel_facts *facts, void **arguments, uint32_t *integers)
{
    size_t count = 0;
    for (unsigned i = 0; i < facts->param_count && count < SMALL_INTEGERS; i++) {
        uint64_t value = 0;
        if (facts->params[i].size != 4 && facts->params[i].size != 8) continue;
        memcpy(&value, arguments[i], facts->params[i].size);
        integers[count++] = value < 1u << 29 ? (uint32_t)value : UINT32_MAX;
    }
    return count * sizeof *integers;
}

/* A kernel's packed name. It is kept because a name is hundreds of bytes long and a kernel is
 * launched thousands of times per step. */
struct ph_packed_name {
    uint64_t hash; /* of everything before the dimensions */
    bool spins;    /* for as many clock cycles as its only parameter says: torch.cuda._sleep */
    struct ph_pack packed;
};

static const struct ph_packed_name *packed_name(struct ph_kernel_facts *facts, const char *name,
                                                const struct ph_signature *signature)
{
    char portable[PH_KERNEL_NAME];
    struct ph_packed_name *known = atomic_load_explicit(&facts->name, memory_order_acquire);
    if (known) return known;
    struct ph_packed_name *fresh = calloc(1, sizeof *fresh);
    if (!fresh) ph_die("out of host memory");
    ph_pack_str(&fresh->packed, ph_kernel_name_portable(name, portable, sizeof portable));
    fresh->spins = strstr(name, "spin_kernel") && facts->known && facts->param_count == 1 &&
                   facts->params[0].size == 8;
    fresh->hash =
        ph_fnv1a(ph_signature_header_hash(signature), fresh->packed.data, fresh->packed.length);
    if (atomic_compare_exchange_strong(&facts->name, &known, fresh)) return fresh;
    ph_pack_free(&fresh->packed); /* another thread was faster */
    free(fresh);
    return known;
}

void ph_launch_signature(struct ph_signature *signature, const char *name,
                         struct ph_kernel_facts *facts, const struct ph_launch *launch,
                         void **arguments)
{
    uint32_t integers[SMALL_INTEGERS];
    uint64_t identity;
    const struct ph_dim3 *dims[3] = {&launch->grid, &launch->block, &launch->cluster};
    struct ph_pack *fields = &signature->fields;
    ph_signature_begin(signature, PH_SIGNATURE_KERNEL, KERNEL_FIELDS);
    const struct ph_packed_name *known = packed_name(facts, name, signature);
    ph_pack_raw(fields, known->packed.data, known->packed.length);
    for (int i = 0; i < 3; i++) {
        if (i == 2) ph_pack_uint(fields, launch->shared_bytes);
        ph_pack_uint(fields, dims[i]->x);
        ph_pack_uint(fields, dims[i]->y);
        ph_pack_uint(fields, dims[i]->z);
    }
    if (known->spins && arguments) /* the same operator may start it with any number of cycles */
        ph_pack_bin(fields, arguments[0], sizeof identity);
    else if (ph_operator_identity(&identity))
        ph_pack_bin(fields, &identity, sizeof identity);
    else
        ph_pack_bin(fields, integers,
                    facts->known && arguments ? integers_of(facts, arguments, integers) : 0);
    ph_signature_end_after(signature, known->hash, known->packed.length);
    signature->facts = facts;
    signature->arguments = arguments;
}

/* all zero: the launch requests no cluster */
static struct ph_dim3 cluster_of(const struct ph_launch_attribute *attributes, unsigned count)
{
    enum { CLUSTER_DIMENSION = 4 };
    struct ph_dim3 cluster = {0, 0, 0};
    for (unsigned i = 0; i < count; i++)
        if (attributes[i].id == CLUSTER_DIMENSION) cluster = attributes[i].value.cluster;
    return cluster;
}

struct ph_launch ph_launch_of_runtime(const struct ph_runtime_launch *config)
{
    return (struct ph_launch){config->grid, config->block,
                              cluster_of(config->attributes, config->attribute_count),
                              config->shared_bytes, config->stream};
}

struct ph_launch ph_launch_of_driver(const struct ph_driver_launch *config)
{
    return (struct ph_launch){config->grid, config->block,
                              cluster_of(config->attributes, config->attribute_count),
                              config->shared_bytes, config->stream};
}

/* ---- copies and fills ---- */
void ph_memory_signature(struct ph_signature *signature, int op, uint64_t bytes, int from, int to)
{
    ph_signature_begin(signature, PH_SIGNATURE_MEMORY, 4);
    signature->call = op == PH_MEMORY_COPY ? PH_CALL_COPY : PH_CALL_MEMSET;
    signature->copies_inside = op == PH_MEMORY_COPY && from == PH_DEVICE && to == PH_DEVICE;
    ph_pack_int(&signature->fields, op);
    ph_pack_uint(&signature->fields, bytes);
    ph_pack_int(&signature->fields, from);
    ph_pack_int(&signature->fields, to);
    ph_signature_end(signature);
}

/* Source: "API synchronization behavior" in the CUDA runtime's reference. Pageable copies to the
 * device of up to 64 KiB return once they are staged. */
bool ph_copy_waits(uint64_t bytes, int from, int to, bool blocking)
{
    bool staged = from == PH_PAGEABLE && to == PH_DEVICE && bytes <= STAGED_BYTES;
    if (blocking) return !staged && !(from == PH_DEVICE && to == PH_DEVICE);
    return (from == PH_PAGEABLE && !staged && to == PH_DEVICE) || to == PH_PAGEABLE;
}

/* ---- for the trace ---- */
const char *ph_signature_call(const struct ph_signature *signature)
{
    switch (signature->call) {
    case PH_CALL_LAUNCH: return "cudaLaunchKernel";
    case PH_CALL_COPY: return "cudaMemcpyAsync";
    case PH_CALL_MEMSET: return "cudaMemsetAsync";
    default: return "cuLaunchKernelEx";
    }
}

void ph_signature_trace(const struct ph_signature *signature)
{
    struct ph_pack packed = {0};
    ph_signature_pack(&packed, signature);
    ph_trace_launch(ph_signature_call(signature), &packed);
    ph_pack_free(&packed);
}

void ph_signature_trace_replayed(const struct ph_signature *signature)
{
    struct ph_pack packed = {0};
    ph_signature_pack(&packed, signature);
    ph_trace_replayed(&packed, 0, 0);
    ph_pack_free(&packed);
}
