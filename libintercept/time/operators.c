/* time/operators.c - the framework operator that encloses this thread's calls. See
 * time/operators.h. */
#include "time/operators.h"
#include "base/api.h"
#include "base/fnv1a.h"
#include <string.h>

enum { SHAPES = 64 };

static _Thread_local struct {
    const char *name;
    uint64_t input_bytes;
    uint64_t hash;     /* of the name and every input's shape; the same in all processes */
    uint32_t launches; /* launches so far */
    uint32_t calls;    /* calls so far that take host time (time/host_model.c) */
    uint32_t shapes;
    uint32_t rank[SHAPES / 4];
    int64_t dims[SHAPES];
} operator_now;

PH_API(void, phantora_operator_begin,
       (const char *name, uint64_t input_bytes, uint32_t shapes, const int64_t *dims,
        const uint32_t *ranks))
{
    uint64_t hash = ph_fnv1a_text(input_bytes + PH_FNV1A, name);
    uint32_t used = 0, kept = 0, all = 0;
    for (uint32_t i = 0; i < shapes; i++) {
        hash = (hash ^ ranks[i]) * 0x100000001b3ull;
        for (uint32_t j = 0; j < ranks[i]; j++)
            hash = (hash ^ (uint64_t)dims[all++]) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    for (; kept < shapes && kept < SHAPES / 4 && used + ranks[kept] <= SHAPES; kept++) {
        operator_now.rank[kept] = ranks[kept];
        if (ranks[kept]) /* of scalars alone, there is no `dims` */
            memcpy(operator_now.dims + used, dims + used, ranks[kept] * sizeof *dims);
        used += ranks[kept];
    }
    operator_now.name = name;
    operator_now.input_bytes = input_bytes;
    operator_now.shapes = kept;
    operator_now.hash = hash;
    operator_now.launches = 0;
    operator_now.calls = 0;
}

/* The enclosing operator (NULL: none), and the index of the call among that operator's calls that
 * take host time, from 1. 0 outside of operators: there is no range in which to count. */
uint32_t ph_operator_call(const char **name, bool count)
{
    *name = operator_now.name;
    if (!operator_now.name) return 0;
    operator_now.calls += count;
    return operator_now.calls;
}

bool ph_operator_encloses(void) { return operator_now.name; }

/* Identifies a launch among others of equal dimensions: the enclosing operator, the shapes of its
 * inputs, and the index of the launch in it. The kernel's own parameters cannot serve, because they
 * contain the caller's uninitialised stack. */
bool ph_operator_identity(uint64_t *identity)
{
    if (!operator_now.name) return false;
    *identity = (operator_now.hash + ++operator_now.launches) * 0x9e3779b97f4a7c15ull;
    return true;
}

PH_API(void, phantora_operator_end, (void)) { operator_now.name = NULL; }

void ph_pack_context(struct ph_pack *body)
{
    if (!operator_now.name) {
        ph_pack_nil(body);
        return;
    }
    ph_pack_array(body, 4);
    ph_pack_str(body, operator_now.name);
    ph_pack_uint(body, operator_now.input_bytes);
    ph_pack_uint(body, 0); /* output bytes: unknown when the operator launches */
    ph_pack_array(body, operator_now.shapes);
    const int64_t *dim = operator_now.dims;
    for (uint32_t i = 0; i < operator_now.shapes; i++) {
        ph_pack_array(body, operator_now.rank[i]);
        for (uint32_t j = 0; j < operator_now.rank[i]; j++) ph_pack_int(body, *dim++);
    }
}
