/* work/cudnn.h - backend descriptors as bags of attributes, and the signatures made from them.
 *
 * Why it exists: cuDNN's graph API describes an operation by descriptors that only collect
 * attributes. The attributes, kept as they were set, are the operation's signature. The numbers are
 * those of cudnn_graph.h (tools/cudnn_tables.py). */
#ifndef PH_CUDNN_H
#define PH_CUDNN_H
#include "work/cudnn_names.gen.h"
#include "work/signature.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_cudnn_attribute {
    int name, type;
    int64_t count;
    /* `count` elements as they were set; descriptors are references that the bag holds */
    void *values;
};

struct ph_cudnn_descriptor {
    uint32_t magic;
    int type;
    bool finalized;
    atomic_int references;
    int attribute_count;
    struct ph_cudnn_attribute *attributes; /* sorted by name, as in the signature */
    /* of engines, configurations and plans: their operation graph */
    struct ph_cudnn_descriptor *graph;
    /* the same descriptor in NVIDIA's library (simulated/math/cudnn_real.c); NULL until needed */
    void *real;
    struct ph_signature signature; /* of plans */
};

/* ---- cudnn_bag.c ---- */
enum { CUDNN_BAG_MAGIC = 0x63646e64 };
struct ph_cudnn_descriptor *ph_cudnn_bag(int type); /* with one reference; NULL: out of memory */
void ph_cudnn_hold(struct ph_cudnn_descriptor *descriptor);
void ph_cudnn_release(struct ph_cudnn_descriptor *descriptor);
void ph_cudnn_set_graph(struct ph_cudnn_descriptor *descriptor, struct ph_cudnn_descriptor *graph);
/* Adds or replaces an attribute, sorted by name. Takes ownership of `values` and, for descriptors,
 * of the references. False: out of memory. */
bool ph_cudnn_put(struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t count,
                  void *values);
/* The attribute, or NULL when it was not set. */
const struct ph_cudnn_attribute *ph_cudnn_find(const struct ph_cudnn_descriptor *descriptor,
                                               int name);
/* Element `index` of a descriptor-valued attribute, NULL when not set or out of range. */
struct ph_cudnn_descriptor *ph_cudnn_child(const struct ph_cudnn_descriptor *descriptor, int name,
                                           int64_t index);

/* ---- cudnn_facts.c: what cuDNN's headers say of the releases 9.10 to 9.26 ---- */
enum ph_cudnn_known {
    CUDNN_HAS,    /* the job's release has it */
    CUDNN_LACKS,  /* the job's release does not have it */
    CUDNN_UNHEARD /* no header that we know has it; a newer release may */
};
/* Bytes of one element of a cudnnBackendAttributeType_t. A type that we do not know is taken for an
 * enumeration, as nearly all are; 0: no release can have such a type. */
size_t ph_cudnn_element_bytes(int type);
/* Whether cuDNN of this release (90200 is 9.2.0) has the attribute type, the descriptor type, the
 * attribute of this descriptor type. */
enum ph_cudnn_known ph_cudnn_has_type(size_t release, int type);
enum ph_cudnn_known ph_cudnn_has_descriptor(size_t release, int descriptor);
enum ph_cudnn_known ph_cudnn_has_attribute(size_t release, int descriptor, int name);

/* ---- cudnn_signature.c ---- */
/* Builds the signature of an operation graph. */
void ph_cudnn_signature(struct ph_signature *signature, const struct ph_cudnn_descriptor *graph);
/* Builds the signature of a batch normalisation of cuDNN's older API. `call` is the function's name
 * without "Ex". */
void ph_cudnn_norm_signature(struct ph_signature *signature, const char *call, int mode,
                             int operations, int data_type, int parameter_type, int dimensions,
                             const int *dims, const int *strides);
#endif
