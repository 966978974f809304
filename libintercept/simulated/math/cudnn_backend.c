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

/* Whether the job's cuDNN has an attribute; one that is in no table counts as there. */
static bool has_attribute(const struct ph_cudnn_descriptor *descriptor, int name)
{
    return ph_cudnn_has_attribute(ph_cudnn_release_number(), descriptor->type, name) != CUDNN_LACKS;
}

/* Whether an attribute can be set. One that is in no table is let through with a warning if
 * NVIDIA's library takes it; it is in the signature as it is. */
static bool takes(const struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t count,
                  const void *values)
{
    if (descriptor->finalized || count < 0 || (count > 0 && values == NULL)) return false;
    switch (ph_cudnn_has_attribute(ph_cudnn_release_number(), descriptor->type, name)) {
    case CUDNN_HAS: return true;
    case CUDNN_LACKS: return false;
    default:
        if (ph_cudnn_real_available() &&
            !ph_cudnn_real_takes(descriptor->type, name, type, count, values))
            return false;
        ph_warn(
            "attribute %d of cuDNN's descriptor type %d is newer than what is known of cuDNN; it "
            "is taken as it is, and the times of its graphs may be wrong",
            name, descriptor->type);
        return true;
    }
}

static bool has_type(int type)
{
    switch (ph_cudnn_has_type(ph_cudnn_release_number(), type)) {
    case CUDNN_HAS: return true;
    case CUDNN_LACKS: return false;
    default:
        ph_warn("attribute type %d is newer than what is known of cuDNN; it is taken for an "
                "enumeration",
                type);
        return true;
    }
}

static bool has_descriptor(int type)
{
    if (type == CUDNN_INTERMEDIATE_INFO) return false; /* declared, but no release makes one */
    switch (ph_cudnn_has_descriptor(ph_cudnn_release_number(), type)) {
    case CUDNN_HAS: return true;
    case CUDNN_LACKS: return false;
    default:
        if (!ph_cudnn_real_available() || !ph_cudnn_real_has(type)) return false;
        ph_warn("descriptor type %d is newer than what is known of cuDNN; the times of its graphs "
                "are guesses",
                type);
        return true;
    }
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
    if (!has_descriptor(type)) /* releases 9.10 to 9.26 return this code */
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
    if (!has_type(type))
        return ph_cudnn_fail(CUDNN_ATTRIBUTE_TYPE, "there is no attribute type %d", type);
    if (!takes(descriptor, name, type, count, values))
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
    const struct ph_cudnn_attribute *dims = ph_cudnn_find(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct ph_cudnn_attribute *strides = ph_cudnn_find(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    return has(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE) && dims != NULL && strides != NULL &&
           dims->count == strides->count && dims->type == CUDNN_TYPE_INT64 &&
           strides->type == CUDNN_TYPE_INT64;
}

/* A plan gets no twin. NVIDIA's library would compile kernels for it (almost a second of CPU time
 * for attention), and the job only asks a plan for its workspace, which its engine configuration
 * knows. */
static int finalize_plan(struct ph_cudnn_descriptor *plan)
{
    struct ph_cudnn_descriptor *configuration =
        ph_cudnn_child(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    if (configuration == NULL && has(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)) {
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
        if (!has(descriptor, CUDNN_ATTR_OPERATIONGRAPH_OPS))
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an operation graph needs operations");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINEHEUR:
        ph_cudnn_set_graph(descriptor,
                           ph_cudnn_child(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0));
        if (descriptor->graph == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "engine heuristics need an operation graph");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINE:
        ph_cudnn_set_graph(descriptor,
                           ph_cudnn_child(descriptor, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0));
        if (descriptor->graph == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an engine needs an operation graph");
        else if (real)
            status = ph_cudnn_real_make(descriptor);
        break;
    case CUDNN_ENGINECFG:
        if (ph_cudnn_child(descriptor, CUDNN_ATTR_ENGINECFG_ENGINE, 0) == NULL)
            status = ph_cudnn_fail(CUDNN_BAD_PARAM, "an engine configuration needs an engine");
        else {
            ph_cudnn_set_graph(descriptor,
                               ph_cudnn_child(descriptor, CUDNN_ATTR_ENGINECFG_ENGINE, 0)->graph);
            if (real) status = ph_cudnn_real_make(descriptor);
        }
        break;
    case CUDNN_EXECUTION_PLAN: status = finalize_plan(descriptor); break;
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
    bool engines = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE;
    bool number = name == CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE ||
                  name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE ||
                  name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX ||
                  name == CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED ||
                  name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT;
    if (count != NULL) *count = engines || number ? 1 : 0;
    if (values == NULL || requested < 1) return CUDNN_SUCCESS;
    if (number) {
        memset(values, 0, ph_cudnn_element_bytes(type));
        if (name == CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT) *(unsigned char *)values = 1;
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
    if (!has_attribute(descriptor, name))
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
    if (descriptor->type == CUDNN_EXECUTION_PLAN &&
        name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
        descriptor = ph_cudnn_child(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
        name = CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE;
    }
    if (descriptor->real == NULL) {
        int status = ph_cudnn_real_make(descriptor);
        if (status != CUDNN_SUCCESS) return status;
    }
    return get_from_real(descriptor, name, type, requested, count, values);
}

/* Since release 9.23: the workspace of a plan for the tensors of a variant pack. It differs from
 * the plan's own only where the pack overrides shapes, for which NVIDIA's library is not asked
 * here. */
PH_API(int, cudnnGetExecutionPlanWorkspaceSize,
       (void *handle, struct ph_cudnn_descriptor *plan, struct ph_cudnn_descriptor *pack,
        size_t *bytes))
{
    bool valid_handle;
    ph_cudnn_stream(handle, &valid_handle);
    if (!valid_handle || !valid(plan) || !valid(pack) || bytes == NULL ||
        plan->type != CUDNN_EXECUTION_PLAN || pack->type != CUDNN_VARIANT_PACK ||
        !plan->finalized || !pack->finalized)
        return ph_cudnn_fail(CUDNN_BAD_PARAM, "cudnnGetExecutionPlanWorkspaceSize: it needs a "
                                              "handle, a finalized plan and a finalized variant "
                                              "pack");
    if (has(pack, CUDNN_ATTR_VARIANT_PACK_OVERRIDE_SHAPES)) {
        ph_unsupported("cudnnGetExecutionPlanWorkspaceSize with overridden shapes");
        return CUDNN_NOT_SUPPORTED;
    }
    int64_t size = 0;
    int status = cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, NULL, &size);
    if (status == CUDNN_SUCCESS) *bytes = (size_t)size;
    return status;
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
    if (plan->type != CUDNN_EXECUTION_PLAN || pack->type != CUDNN_VARIANT_PACK ||
        !plan->finalized || !pack->finalized)
        return ph_cudnn_fail(CUDNN_NOT_FINALIZED,
                             "cudnnBackendExecute: plan and variant pack must be finalized");
    ph_submit(stream, &plan->signature);
    return CUDNN_SUCCESS;
}
