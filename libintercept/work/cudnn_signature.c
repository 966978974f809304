/* cudnn_signature.c - an operation graph as a canonical signature (docs/wire-protocol.md, kind 2).
 *
 * Why it exists: a kernel time may be looked up only by what decides it. So a signature holds the
 * operations in the order of the graph, each with its attributes sorted by name, and tensors by
 * type and shape. It holds no pointer, no handle, no tensor number and nothing else that differs
 * between two runs. Descriptors that only carry settings (a convolution's, a pointwise mode) are
 * merged into their operation. That is safe because all attributes of cuDNN have different numbers.
 * Operations inside of an operation (attention's mask and softmax since 9.20) are lists of their
 * own. */
#include "work/cudnn.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ATTRIBUTES = 64 };

/* Always packed as arrays, even with one element: paddings, strides, dilations, windows. */
static bool is_array(int name)
{
    return (name >= 102 && name <= 105) || (name >= 1703 && name <= 1706);
}

static void pack_integers(struct ph_pack *pack, const void *values, int64_t count, size_t size,
                          bool array)
{
    if (array) ph_pack_array(pack, (uint32_t)count);
    for (int64_t i = 0; i < count; i++) {
        const char *at = (const char *)values + (size_t)i * size;
        int64_t wide;
        int32_t narrow;
        if (size == 8) {
            memcpy(&wide, at, 8);
        } else if (size == 4) {
            memcpy(&narrow, at, 4);
            wide = narrow;
        } else {
            wide = *at;
        }
        ph_pack_int(pack, wide);
    }
}

static void pack_tensor(struct ph_pack *pack, const struct ph_cudnn_descriptor *tensor)
{
    const struct ph_cudnn_attribute *type = ph_cudnn_find(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    const struct ph_cudnn_attribute *dims = ph_cudnn_find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct ph_cudnn_attribute *strides = ph_cudnn_find(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    ph_pack_array(pack, 4);
    ph_pack_str(pack, "t");
    pack_integers(pack, type->values, 1, 4, false);
    pack_integers(pack, dims->values, dims->count, 8, true);
    pack_integers(pack, strides->values, strides->count, 8, true);
}

static void pack_operation(struct ph_pack *pack, const struct ph_cudnn_descriptor *operation);

/* The operations inside of an operation: they are listed, or are a graph. */
static void pack_inner(struct ph_pack *pack, const struct ph_cudnn_attribute *attribute)
{
    const struct ph_cudnn_descriptor *first = ((struct ph_cudnn_descriptor **)attribute->values)[0];
    if (first->type == CUDNN_OPERATIONGRAPH)
        attribute = ph_cudnn_find(first, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    ph_pack_array(pack, attribute != NULL ? (uint32_t)attribute->count : 0);
    for (int64_t i = 0; attribute != NULL && i < attribute->count; i++)
        pack_operation(pack, ((struct ph_cudnn_descriptor **)attribute->values)[i]);
}

static void pack_value(struct ph_pack *pack, const struct ph_cudnn_attribute *attribute)
{
    ph_pack_int(pack, attribute->name);
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct ph_cudnn_descriptor *const *children = attribute->values;
        if (children[0]->type != CUDNN_TENSOR) {
            pack_inner(pack, attribute);
            return;
        }
        if (attribute->count != 1) ph_pack_array(pack, (uint32_t)attribute->count);
        for (int64_t i = 0; i < attribute->count; i++) pack_tensor(pack, children[i]);
    } else if (attribute->type == CUDNN_TYPE_FLOAT || attribute->type == CUDNN_TYPE_DOUBLE) {
        if (attribute->count != 1) ph_pack_array(pack, (uint32_t)attribute->count);
        for (int64_t i = 0; i < attribute->count; i++)
            ph_pack_double(pack, attribute->type == CUDNN_TYPE_FLOAT
                                     ? (double)((float *)attribute->values)[i]
                                     : ((double *)attribute->values)[i]);
    } else if (attribute->type == CUDNN_TYPE_FRACTION) {
        pack_integers(pack, attribute->values, 2 * attribute->count, 8, true);
    } else {
        bool array = attribute->count != 1 || is_array(attribute->name);
        pack_integers(pack, attribute->values, attribute->count,
                      ph_cudnn_element_bytes(attribute->type), array);
    }
}

struct list {
    int count;
    const struct ph_cudnn_attribute *items[MOST_ATTRIBUTES];
};

/* Descriptors that only carry settings of the operation that refers to them. */
static bool only_settings(int type)
{
    switch (type) {
    case CUDNN_POINTWISE:
    case CUDNN_CONVOLUTION:
    case CUDNN_MATMUL:
    case CUDNN_REDUCTION:
    case CUDNN_RESAMPLE:
    case CUDNN_RNG: return true;
    default: return false;
    }
}

/* Numbers that name tensors, not what is computed. */
static bool tensor_number(int name)
{
    switch (name) {
    case CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID:
    case CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID:
    case CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID:
    case CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID: return true;
    default: return false;
    }
}

/* Collects the attributes of a descriptor that the signature holds. A child that only carries
 * settings contributes its own attributes in place of the reference to it. */
static void collect(struct list *list, const struct ph_cudnn_descriptor *descriptor)
{
    for (int i = 0; i < descriptor->attribute_count; i++) {
        const struct ph_cudnn_attribute *attribute = &descriptor->attributes[i];
        if (attribute->type == CUDNN_TYPE_HANDLE || attribute->type == CUDNN_TYPE_VOID_PTR ||
            attribute->count == 0 || tensor_number(attribute->name))
            continue;
        if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
            const struct ph_cudnn_descriptor *child =
                ((struct ph_cudnn_descriptor **)attribute->values)[0];
            if (only_settings(child->type)) {
                collect(list, child);
                continue;
            }
        }
        if (list->count < MOST_ATTRIBUTES) /* the longest operation, batch norm's, has 17 */
            list->items[list->count++] = attribute;
    }
}

static int by_name(const void *left, const void *right)
{
    const struct ph_cudnn_attribute *const *a = left, *const *b = right;
    return (*a)->name - (*b)->name;
}

static void pack_operation(struct ph_pack *pack, const struct ph_cudnn_descriptor *operation)
{
    struct list list = {0};
    collect(&list, operation);
    qsort(list.items, (size_t)list.count, sizeof list.items[0], by_name);
    ph_pack_array(pack, 2);
    ph_pack_int(pack, operation->type);
    ph_pack_array(pack, (uint32_t)list.count);
    for (int i = 0; i < list.count; i++) {
        ph_pack_array(pack, 2);
        pack_value(pack, list.items[i]);
    }
}

void ph_cudnn_signature(struct ph_signature *signature, const struct ph_cudnn_descriptor *graph)
{
    const struct ph_cudnn_attribute *operations =
        ph_cudnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct ph_pack *pack = &signature->fields;
    ph_signature_begin(signature, PH_SIGNATURE_CUDNN, 1);
    ph_pack_array(pack, (uint32_t)operations->count);
    for (int64_t i = 0; i < operations->count; i++)
        pack_operation(pack, ((struct ph_cudnn_descriptor **)operations->values)[i]);
    ph_signature_end(signature);
}

void ph_cudnn_norm_signature(struct ph_signature *signature, const char *call, int mode,
                             int operations, int data_type, int parameter_type, int dimensions,
                             const int *dims, const int *strides)
{
    struct ph_pack *pack = &signature->fields;
    ph_signature_begin(signature, PH_SIGNATURE_CALL, 2);
    ph_pack_str(pack, call);
    ph_pack_array(pack, (uint32_t)(5 + 2 * dimensions));
    ph_pack_int(pack, mode);
    ph_pack_int(pack, operations);
    ph_pack_int(pack, data_type);
    ph_pack_int(pack, parameter_type);
    ph_pack_int(pack, dimensions);
    for (int i = 0; i < dimensions; i++) ph_pack_int(pack, dims[i]);
    for (int i = 0; i < dimensions; i++) ph_pack_int(pack, strides[i]);
    ph_signature_end(signature);
}
