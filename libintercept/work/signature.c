/* work/signature.c - what a launch and a copy are to the kernel table, and what is remembered of
 * them for the estimators.
 *
 * Why it exists: a leader measures by signature and a simulated rank asks by it, so both make it
 * here. Nothing in it may depend on the process: addresses and uninitialised bytes stay out. */
#include "work/signature.h"
#include "backend.h"
#include "base/fnv1a.h"
#include "time/operators.h"
#include "work/kernel_name.h"
#include <string.h>

enum { PARAM_BYTES = 4096, SMALL_INTEGERS = 16, STAGED_BYTES = 65536 };

uint64_t ph_signature_key(const struct ph_pack *signature)
{
    uint64_t key = ph_fnv1a(PH_FNV1A, signature->data, signature->length);
    return key ? key : 1;
}

enum ph_call ph_call_of(const struct ph_pack *signature)
{
    switch (signature->data[1]) {
    case PH_SIGNATURE_KERNEL: return PH_CALL_LAUNCH;
    case PH_SIGNATURE_GEMM: return PH_CALL_GEMM;
    case PH_SIGNATURE_MEMORY:
        return signature->data[3] == PH_MEMORY_COPY ? PH_CALL_COPY : PH_CALL_MEMSET;
    default: return PH_CALL_DNN;
    }
}

/* ---- kernels ---- */
/* Parameter bytes with device addresses and pinned host addresses zeroed. What is left are the
 * scalars, and whatever the caller left uninitialised in its structures: good for estimators that
 * know a kernel's layout, not for telling launches apart. */
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

static _Thread_local struct {
    const struct ph_kernel_facts *facts;
    void **arguments;
} launching;

void ph_pack_parameters(struct ph_pack *pack)
{
    unsigned char bytes[PARAM_BYTES];
    const struct ph_kernel_facts *facts = launching.facts;
    ph_pack_bin(pack, bytes,
                facts && facts->known && launching.arguments
                    ? scalars_of(facts, launching.arguments, bytes)
                    : 0);
}

/* The identity of a launch that no framework operator encloses (Triton's, or without the values
 * library): its parameters that are integers of a size that sizes have. A 32-bit float is larger
 * than any of them when read as an integer. */
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

void ph_launch_signature(struct ph_pack *signature, const char *name,
                         const struct ph_kernel_facts *facts, const struct ph_launch *launch,
                         void **arguments)
{
    uint32_t integers[SMALL_INTEGERS];
    uint64_t identity;
    char portable[PH_KERNEL_NAME];
    const struct ph_dim3 *dims[3] = {&launch->grid, &launch->block, &launch->cluster};
    signature->length = 0;
    ph_pack_array(signature, 2);
    ph_pack_uint(signature, PH_SIGNATURE_KERNEL);
    ph_pack_array(signature, 12);
    ph_pack_str(signature, ph_kernel_name_portable(name, portable, sizeof portable));
    for (int i = 0; i < 3; i++) {
        if (i == 2) ph_pack_uint(signature, launch->shared_bytes);
        ph_pack_uint(signature, dims[i]->x);
        ph_pack_uint(signature, dims[i]->y);
        ph_pack_uint(signature, dims[i]->z);
    }
    if (ph_operator_identity(&identity))
        ph_pack_bin(signature, &identity, sizeof identity);
    else
        ph_pack_bin(signature, integers,
                    facts->known && arguments ? integers_of(facts, arguments, integers) : 0);
    launching.facts = facts;
    launching.arguments = arguments;
}

void ph_launch_over(void) { launching.facts = NULL; }

/* all zero: no cluster was asked for */
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
void ph_memory_signature(struct ph_pack *signature, int op, uint64_t bytes, int from, int to)
{
    signature->length = 0;
    ph_pack_array(signature, 2);
    ph_pack_uint(signature, PH_SIGNATURE_MEMORY);
    ph_pack_array(signature, 4);
    ph_pack_int(signature, op);
    ph_pack_uint(signature, bytes);
    ph_pack_int(signature, from);
    ph_pack_int(signature, to);
}

/* "API synchronization behavior" of the CUDA runtime's reference; pageable copies to the device up
 * to 64 KiB return once staged. */
bool ph_copy_waits(uint64_t bytes, int from, int to, bool blocking)
{
    bool staged = from == PH_PAGEABLE && to == PH_DEVICE && bytes <= STAGED_BYTES;
    if (blocking) return !staged && !(from == PH_DEVICE && to == PH_DEVICE);
    return (from == PH_PAGEABLE && !staged && to == PH_DEVICE) || to == PH_PAGEABLE;
}
