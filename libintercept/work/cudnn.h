/* work/cudnn.h - backend descriptors as bags of attributes, and the signatures made from them.
 *
 * Why it exists: cuDNN's graph API describes an operation by descriptors that only collect
 * attributes. The attributes, kept as they were set, are the operation's signature. The numbers are
 * those of cudnn_graph.h, release 9.19. A test compares them with the header where it is installed.
 */
#ifndef PH_CUDNN_H
#define PH_CUDNN_H
#include "work/signature.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ph_cudnn_status {
    CUDNN_SUCCESS = 0,
    CUDNN_NOT_INITIALIZED = 1001,
    CUDNN_BAD_PARAM = 2000,
    CUDNN_NULL_POINTER = 2002,
    CUDNN_NOT_FINALIZED = 2004,
    CUDNN_ATTRIBUTE_TYPE = 2010,
    CUDNN_NOT_SUPPORTED = 3000,
    CUDNN_HOST_ALLOCATION_FAILED = 4003,
};

enum ph_cudnn_type { /* cudnnBackendAttributeType_t: the types that this code names */
                     CUDNN_TYPE_HANDLE = 0,
                     CUDNN_TYPE_BOOLEAN = 2,
                     CUDNN_TYPE_INT64 = 3,
                     CUDNN_TYPE_FLOAT = 4,
                     CUDNN_TYPE_DOUBLE = 5,
                     CUDNN_TYPE_VOID_PTR = 6,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR = 15,
                     CUDNN_TYPE_INT32 = 23,
                     CUDNN_TYPE_CHAR = 24,
                     CUDNN_TYPE_FRACTION = 26,
                     CUDNN_TYPES = 31
};

enum ph_cudnn_descriptor_type { /* cudnnBackendDescriptorType_t, likewise */
                                CUDNN_ENGINE = 2,
                                CUDNN_ENGINECFG = 3,
                                CUDNN_ENGINEHEUR = 4,
                                CUDNN_PLAN = 5,
                                CUDNN_OPERATIONGRAPH = 15,
                                CUDNN_VARIANT_PACK = 16,
                                CUDNN_TENSOR = 17,
                                CUDNN_OPERATION_MATMUL = 19,
                                CUDNN_DEVICEPROP = 38,
                                CUDNN_OPERATION_SDPA_FWD = 41,
                                CUDNN_OPERATION_SDPA_BWD = 43,
                                CUDNN_DESCRIPTOR_TYPES = 44
};

enum ph_cudnn_attribute_name { /* cudnnBackendAttributeName_t, likewise */
                               CUDNN_ENGINEHEUR_OPERATION_GRAPH = 201,
                               CUDNN_ENGINEHEUR_RESULTS = 202,
                               CUDNN_ENGINEHEUR_DEVICEPROP = 204,
                               CUDNN_ENGINECFG_ENGINE = 300,
                               CUDNN_ENGINECFG_WORKSPACE_SIZE = 303,
                               CUDNN_ENGINECFG_SHARED_MEMORY_USED = 304,
                               CUDNN_PLAN_ENGINE_CONFIG = 401,
                               CUDNN_PLAN_WORKSPACE_SIZE = 402,
                               CUDNN_PLAN_JSON = 405,
                               CUDNN_PLAN_DEVICEPROP = 407,
                               CUDNN_OPERATIONGRAPH_OPS = 801,
                               CUDNN_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT = 802,
                               CUDNN_TENSOR_DATA_TYPE = 901,
                               CUDNN_TENSOR_DIMENSIONS = 902,
                               CUDNN_TENSOR_STRIDES = 903,
                               CUDNN_ENGINE_OPERATION_GRAPH = 1300,
                               CUDNN_ENGINE_GLOBAL_INDEX = 1301,
                               CUDNN_ENGINE_DEVICEPROP = 1307,
                               CUDNN_DEVICEPROP_JSON = 2702,
};

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
/* Bytes of one element of a cudnnBackendAttributeType_t, 0 when there is no such type. */
size_t ph_cudnn_element_bytes(int type);

/* ---- cudnn_signature.c ---- */
/* Builds the signature of an operation graph. */
void ph_cudnn_signature(struct ph_signature *signature, const struct ph_cudnn_descriptor *graph);
/* Builds the signature of a batch normalisation of cuDNN's older API. `call` is the function's name
 * without "Ex". */
void ph_cudnn_norm_signature(struct ph_signature *signature, const char *call, int mode,
                             int operations, int data_type, int parameter_type, int dimensions,
                             const int *dims, const int *strides);
#endif
