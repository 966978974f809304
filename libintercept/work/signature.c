/* work/signature.c - makes signatures field by field, hashes them and packs them.
 *
 * Why it exists: a leader measures by signature and a simulated rank looks durations up by
 * signature, so both make it here. Recorded databases are keyed by the hash of the packed bytes.
 * The hub computes the same hash. */
#include "work/signature.h"
#include "base/fnv1a.h"

enum { HEADER_BYTES = 8 };

/* The bytes before the fields: an array of two, the kind, an array of `count`. */
static size_t header_of(const struct ph_signature *signature, unsigned char header[HEADER_BYTES])
{
    struct ph_pack pack = {header, 0, HEADER_BYTES};
    ph_pack_array(&pack, 2);
    ph_pack_uint(&pack, signature->kind);
    ph_pack_array(&pack, signature->count);
    return pack.length;
}

uint64_t ph_signature_header_hash(const struct ph_signature *signature)
{
    unsigned char header[HEADER_BYTES];
    return ph_fnv1a(PH_FNV1A, header, header_of(signature, header));
}

void ph_signature_begin(struct ph_signature *signature, enum ph_signature_kind kind, uint32_t count)
{
    signature->kind = kind;
    signature->call = kind == PH_SIGNATURE_KERNEL ? PH_CALL_LAUNCH
                      : kind == PH_SIGNATURE_GEMM ? PH_CALL_GEMM
                                                  : PH_CALL_DNN;
    signature->copies_inside = false;
    signature->count = count;
    signature->fields.length = 0;
    signature->facts = NULL;
    signature->arguments = NULL;
}

void ph_signature_end_after(struct ph_signature *signature, uint64_t hash, size_t from)
{
    const struct ph_pack *fields = &signature->fields;
    hash = ph_fnv1a(hash, fields->data + from, fields->length - from);
    signature->key = hash ? hash : 1;
}

void ph_signature_end(struct ph_signature *signature)
{
    ph_signature_end_after(signature, ph_signature_header_hash(signature), 0);
}

void ph_signature_pack(struct ph_pack *pack, const struct ph_signature *signature)
{
    unsigned char header[HEADER_BYTES];
    ph_pack_raw(pack, header, header_of(signature, header));
    ph_pack_raw(pack, signature->fields.data, signature->fields.length);
}

void ph_signature_copy(struct ph_signature *to, const struct ph_signature *from)
{
    struct ph_pack fields = to->fields;
    *to = *from;
    to->facts = NULL;
    to->arguments = NULL;
    to->fields = fields;
    to->fields.length = 0;
    ph_pack_raw(&to->fields, from->fields.data, from->fields.length);
}

void ph_signature_free(struct ph_signature *signature)
{
    ph_pack_free(&signature->fields);
    signature->count = 0;
}
