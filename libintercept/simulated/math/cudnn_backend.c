/* cudnn_backend.c - cuDNN's graph API: descriptors, engine heuristics, plans, execution.
 *
 * Why it exists: PyTorch uses these nine functions for attention, convolutions and more, through
 * cudnn-frontend, which is compiled into it. Descriptors are bags of attributes. Only cuDNN itself
 * can decide which engines fit a graph, in which order, and with how much workspace. NVIDIA's
 * library decides that from a description of the GPU (cudnn_real.c); nothing of it runs on a GPU.
 * Execution puts the graph's signature on the handle's stream. */
#define PH_CLASS PH_SIMULATED
#include "base/log.h"
#include "cudagraph/submit.h"
#include "simulated/math/cudnn.h"

#include <stdlib.h>
#include <string.h>

/* Whether a descriptor type has an attribute: each type has its range of numbers. */
static bool belongs(int type, int name)
{
    static const short ranges[CUDNN_DESCRIPTOR_TYPES][2] = {
        [0] = {0, 99},       [1] = {100, 199},    [2] = {1300, 1399},  [3] = {300, 399},
        [4] = {200, 299},    [5] = {400, 499},    [6] = {500, 599},    [7] = {600, 699},
        [8] = {1200, 1299},  [9] = {1100, 1199},  [10] = {700, 705},   [11] = {712, 717},
        [12] = {706, 711},   [13] = {750, 769},   [14] = {770, 779},   [15] = {800, 899},
        [16] = {1000, 1099}, [17] = {900, 999},   [18] = {1500, 1519}, [19] = {1520, 1599},
        [20] = {780, 799},   [21] = {1600, 1609}, [22] = {1610, 1619}, [23] = {1620, 1699},
        [24] = {1700, 1709}, [25] = {1710, 1719}, [26] = {1720, 1729}, [27] = {1800, 1899},
        [28] = {1900, 1949}, [29] = {2000, 2099}, [30] = {2100, 2199}, [31] = {2200, 2249},
        [32] = {2300, 2309}, [33] = {2310, 2399}, [34] = {2400, 2499}, [35] = {1950, 1999},
        [36] = {2500, 2599}, [37] = {2600, 2699}, [38] = {2700, 2799}, [39] = {2250, 2269},
        [40] = {2270, 2299}, [41] = {2800, 2850}, [42] = {2900, 2999}, [43] = {2851, 2899},
    };
    return name >= ranges[type][0] && name <= ranges[type][1];
}

static bool valid(const struct ph_cudnn_descriptor *descriptor)
{
    return descriptor != NULL && descriptor->magic == CUDNN_BAG_MAGIC;
}

/* ---- descriptors ---- */

PH_API(int, cudnnBackendCreateDescriptor, (int type, struct ph_cudnn_descriptor **descriptor))
{
    if (descriptor == NULL)
        return ph_cudnn_fail(CUDNN_NULL_POINTER,
                             "cudnnBackendCreateDescriptor: no place for the descriptor");
    *descriptor = NULL;
    if (type < 0 || type >= CUDNN_DESCRIPTOR_TYPES) /* release 9.19 returns this code */
        return ph_cudnn_fail(CUDNN_HOST_ALLOCATION_FAILED, "there is no descriptor type %d", type);
    *descriptor = ph_cudnn_bag(type);
    return *descriptor != NULL ? CUDNN_SUCCESS : CUDNN_HOST_ALLOCATION_FAILED;
}

PH_API(int, cudnnBackendDestroyDescriptor, (struct ph_cudnn_descriptor *descriptor))
{
    if (!valid(descriptor))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnBackendDestroyDescriptor: not a descriptor");
    ph_cudnn_release(descriptor);
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnBackendInitialize, (struct ph_cudnn_descriptor *descriptor))
{
    return valid(descriptor) ? CUDNN_SUCCESS
                             : ph_cudnn_fail(CUDNN_NULL_POINTER, "not a descriptor");
}

PH_API(int, cudnnBackendSetAttribute,
       (struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t count,
        const void *values))
{
    if (!valid(descriptor))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnBackendSetAttribute: not a descriptor");
    size_t size = ph_cudnn_element_bytes(type);
    if (size == 0)
        return ph_cudnn_fail(CUDNN_ATTRIBUTE_TYPE, "there is no attribute type %d", type);
    if (descriptor->finalized || !belongs(descriptor->type, name) || count < 0 ||
        (count > 0 && values == NULL))
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "attribute %d of descriptor type %d cannot be set%s",
                             name, descriptor->type,
                             descriptor->finalized ? ": the descriptor is finalized" : "");
    void *copy = malloc(count > 0 ? size * (size_t)count : 1);
    if (copy == NULL) return CUDNN_HOST_ALLOCATION_FAILED;
    if (count > 0) memcpy(copy, values, size * (size_t)count);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct ph_cudnn_descriptor **children = copy;
        for (int64_t i = 0; i < count; i++) {
            if (!valid(children[i]) || !children[i]->finalized) {
                free(copy);
                return ph_cudnn_fail(CUDNN_NOT_FINALIZED,
                                     "attribute %d: element %lld is not a finalized descriptor",
                                     name, (long long)i);
            }
        }
        for (int64_t i = 0; i < count; i++) ph_cudnn_hold(children[i]);
    }
    return ph_cudnn_put(descriptor, name, type, count, copy) ? CUDNN_SUCCESS
                                                             : CUDNN_HOST_ALLOCATION_FAILED;
}

/* ---- finalizing ---- */

static bool has(const struct ph_cudnn_descriptor *descriptor, int name)
{
    const struct ph_cudnn_attribute *attribute = ph_cudnn_find(descriptor, name);
    return attribute != NULL && attribute->count > 0;
}

static bool complete_tensor(const struct ph_cudnn_descriptor *tensor)
{
    const struct ph_cudnn_attribute *dims = ph_cudnn_find(tensor, CUDNN_TENSOR_DIMENSIONS);
    const struct ph_cudnn_attribute *strides = ph_cudnn_find(tensor, CUDNN_TENSOR_STRIDES);
    return has(tensor, CUDNN_TENSOR_DATA_TYPE) && dims != NULL && strides != NULL &&
           dims->count == strides->count && dims->type == CUDNN_TYPE_INT64 &&
           strides->type == CUDNN_TYPE_INT64;
}

/* A plan gets no twin. NVIDIA's library would compile kernels for it (almost a second of CPU time
 * for attention), and the job only asks a plan for its workspace, which its engine configuration
 * knows. */
static int finalize_plan(struct ph_cudnn_descriptor *plan)
{
    struct ph_cudnn_descriptor *configuration = ph_cudnn_child(plan, CUDNN_PLAN_ENGINE_CONFIG, 0);
    if (configuration == NULL && has(plan, CUDNN_PLAN_JSON)) {
        /* we would not know its operations */
        ph_unsupported("cudnnBackendFinalize of a plan loaded from JSON");
        return CUDNN_NOT_SUPPORTED;
    }
    if (configuration == NULL || configuration->graph == NULL)
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "the plan has no engine configuration");
    ph_cudnn_set_graph(plan, configuration->graph);
    ph_cudnn_signature(&plan->signature, plan->graph);
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnBackendFinalize, (struct ph_cudnn_descriptor *descriptor))
{
    if (!valid(descriptor))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnBackendFinalize: not a descriptor");
    if (descriptor->finalized)
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "the descriptor is finalized already");
    int status = CUDNN_SUCCESS;
    bool real = ph_cudnn_real_available();
    switch (descriptor->type) {
    case CUDNN_TENSOR:
        if (!complete_tensor(descriptor))
            status = ph_cudnn_fail(CUDNN_BAD_PARAM,
                                   "a tensor needs a data type, and as many strides as dimensions");
        break;
    case CUDNN_OPERATIONGRAPH:
        if (!has(descriptor, CUDNN_OPERATIONGRAPH_OPS))
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an operation graph needs operations");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINEHEUR:
        ph_cudnn_set_graph(descriptor,
                           ph_cudnn_child(descriptor, CUDNN_ENGINEHEUR_OPERATION_GRAPH, 0));
        if (descriptor->graph == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "engine heuristics need an operation graph");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINE:
        ph_cudnn_set_graph(descriptor, ph_cudnn_child(descriptor, CUDNN_ENGINE_OPERATION_GRAPH, 0));
        if (descriptor->graph == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an engine needs an operation graph");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINECFG:
        if (ph_cudnn_child(descriptor, CUDNN_ENGINECFG_ENGINE, 0) == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an engine configuration needs an engine");
        else {
            ph_cudnn_set_graph(descriptor,
                               ph_cudnn_child(descriptor, CUDNN_ENGINECFG_ENGINE, 0)->graph);
            if (real) status = ph_cudnn_real_make(descriptor);
        }
        break;
    case CUDNN_PLAN: status = finalize_plan(descriptor); break;
    case CUDNN_DEVICEPROP:
        if (real) status = ph_cudnn_real_make(descriptor);
        break;
    default:
        break; /* variant packs, and descriptors that NVIDIA's library checks as part of a graph */
    }
    descriptor->finalized = status == CUDNN_SUCCESS;
    return status;
}

/* ---- reading ---- */

/* Descriptors of the job that NVIDIA's library fills belong to the graph of the queried descriptor.
 */
static int get_from_real(struct ph_cudnn_descriptor *descriptor, int name, int type,
                         int64_t requested, int64_t *count, void *values)
{
    int64_t got = 0;
    int status = ph_cudnn_real_get(descriptor, name, type, requested, &got, values);
    if (count != NULL) *count = got;
    if (status != CUDNN_SUCCESS || type != CUDNN_TYPE_BACKEND_DESCRIPTOR || values == NULL)
        return status;
    for (int64_t i = 0; i < got && i < requested; i++) {
        struct ph_cudnn_descriptor *filled = ((struct ph_cudnn_descriptor **)values)[i];
        ph_cudnn_set_graph(filled, descriptor->graph);
        filled->finalized = true;
    }
    return CUDNN_SUCCESS;
}

/* Without NVIDIA's library: one engine, no knobs, no numerical notes, no workspace.
 * ph_cudnn_real_available has warned. */
static int get_without_real(struct ph_cudnn_descriptor *descriptor, int name, int type,
                            int64_t requested, int64_t *count, void *values)
{
    bool engines = name == CUDNN_ENGINEHEUR_RESULTS || name == CUDNN_ENGINECFG_ENGINE;
    bool number = name == CUDNN_ENGINECFG_WORKSPACE_SIZE || name == CUDNN_PLAN_WORKSPACE_SIZE ||
                  name == CUDNN_ENGINE_GLOBAL_INDEX || name == CUDNN_ENGINECFG_SHARED_MEMORY_USED ||
                  name == CUDNN_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT;
    if (count != NULL) *count = engines || number ? 1 : 0;
    if (values == NULL || requested < 1) return CUDNN_SUCCESS;
    if (number) {
        memset(values, 0, ph_cudnn_element_bytes(type));
        if (name == CUDNN_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) *(unsigned char *)values = 1;
    }
    if (engines) {
        struct ph_cudnn_descriptor *filled = *(struct ph_cudnn_descriptor **)values;
        if (!valid(filled))
            return ph_cudnn_fail(CUDNN_NULL_POINTER, "attribute %d: not a descriptor to fill",
                                 name);
        ph_cudnn_set_graph(filled, descriptor->graph);
        filled->finalized = true;
    }
    return CUDNN_SUCCESS;
}

PH_API(int, cudnnBackendGetAttribute,
       (struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t requested,
        int64_t *count, void *values))
{
    if (!valid(descriptor))
        return ph_cudnn_fail(CUDNN_NULL_POINTER, "cudnnBackendGetAttribute: not a descriptor");
    if (!descriptor->finalized)
        return ph_cudnn_fail(CUDNN_NOT_INITIALIZED, "the descriptor is not finalized");
    if (!belongs(descriptor->type, name))
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "descriptor type %d has no attribute %d",
                             descriptor->type, name);
    const struct ph_cudnn_attribute *set = ph_cudnn_find(descriptor, name);
    if (set != NULL && set->type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        if (set->type != type)
            return ph_cudnn_fail(CUDNN_ATTRIBUTE_TYPE, "attribute %d has type %d, not %d", name,
                                 set->type, type);
        int64_t copied = requested < set->count ? requested : set->count;
        if (count != NULL) *count = requested == 0 || values == NULL ? set->count : copied;
        if (values != NULL && copied > 0)
            memcpy(values, set->values, ph_cudnn_element_bytes(type) * (size_t)copied);
        return CUDNN_SUCCESS;
    }
    if (!ph_cudnn_real_available())
        return get_without_real(descriptor, name, type, requested, count, values);
    if (descriptor->type == CUDNN_PLAN && name == CUDNN_PLAN_WORKSPACE_SIZE) {
        descriptor = ph_cudnn_child(descriptor, CUDNN_PLAN_ENGINE_CONFIG, 0);
        name = CUDNN_ENGINECFG_WORKSPACE_SIZE;
    }
    if (descriptor->real == NULL) {
        int status = ph_cudnn_real_make(descriptor);
        if (status != CUDNN_SUCCESS) return status;
    }
    return get_from_real(descriptor, name, type, requested, count, values);
}

#undef PH_CLASS
#define PH_CLASS PH_ACCOUNTED
/* ---- execution ---- */

PH_API(int, cudnnBackendExecute,
       (void *handle, struct ph_cudnn_descriptor *plan, struct ph_cudnn_descriptor *pack))
{
    bool valid_handle;
    void *stream = ph_cudnn_stream(handle, &valid_handle);
    if (!valid_handle || !valid(plan) || !valid(pack))
        return ph_cudnn_fail(CUDNN_NULL_POINTER,
                             "cudnnBackendExecute: no handle, plan or variant pack");
    if (plan->type != CUDNN_PLAN || pack->type != CUDNN_VARIANT_PACK || !plan->finalized ||
        !pack->finalized)
        return ph_cudnn_fail(CUDNN_NOT_FINALIZED,
                             "cudnnBackendExecute: plan and variant pack must be finalized");
    ph_submit(stream, &plan->signature);
    return CUDNN_SUCCESS;
}
