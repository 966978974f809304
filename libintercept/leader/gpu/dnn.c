/* dnn.c - the leader's cuDNN: the real library computes, and each of its descriptors has a bag of
 * the attributes that were set on it.
 *
 * Why it exists: cuDNN's descriptors do not tell their operations once they are set. So attributes
 * are kept when they are set, and the simulated rank's code (work/cudnn_signature.c) makes the
 * signature from them. The graph of an engine, a configuration or a plan follows from its origin:
 * the job set it, or the library filled it from a graph's heuristics. Descriptors that the library
 * uses internally pass through here as well. The same calls as in a simulated rank are timed
 * (cudnn_backend.c, cudnn_legacy.c). */
#include "base/log.h"
#include "work/cudnn.h"
#include "leader/gpu/map.h"
#include "leader/leader.h"
#include "leader/measure/measure.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int cudnnGetStream(void *handle, void **stream);
int cudnnGetTensorNdDescriptor(const void *descriptor, int requested, int *data_type,
                               int *dimensions, int *dims, int *strides);

enum { MOST_DIMENSIONS = 8 /* CUDNN_DIM_MAX */ };

static struct ph_map bags = PH_MAP_INIT; /* the bag of each real descriptor */
static pthread_mutex_t bags_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- bags ---- */
static struct ph_cudnn_descriptor *find_locked(const void *real) { return ph_map_get(&bags, real); }

static void remove_locked(const void *real)
{
    struct ph_cudnn_descriptor *old = ph_map_take(&bags, real);
    if (old) ph_cudnn_release(old);
}

static void add_locked(const void *real, int type)
{
    struct ph_cudnn_descriptor *bag = ph_cudnn_bag(type);
    if (!bag) ph_die("out of host memory for a cuDNN descriptor");
    /* an old one was destroyed without a call to us */
    struct ph_cudnn_descriptor *old = ph_map_put(&bags, real, bag);
    if (old) ph_cudnn_release(old);
}

/* Keeps the attribute as a simulated rank would. False: it refers to an unknown descriptor. */
static bool keep_locked(struct ph_cudnn_descriptor *bag, int name, int type, int64_t count,
                        const void *values)
{
    size_t size = ph_cudnn_element_bytes(type);
    if (size == 0 || count < 0 || (count > 0 && !values)) return false;
    void *copy = malloc(count > 0 ? size * (size_t)count : 1);
    if (!copy) ph_die("out of host memory for a cuDNN attribute");
    if (count > 0) memcpy(copy, values, size * (size_t)count);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        void **reals = copy;
        struct ph_cudnn_descriptor **children = copy;
        for (int64_t i = 0; i < count; i++)
            if (!find_locked(reals[i])) {
                free(copy);
                return false;
            }
        for (int64_t i = 0; i < count; i++) ph_cudnn_hold(children[i] = find_locked(reals[i]));
    }
    if (!ph_cudnn_put(bag, name, type, count, copy))
        ph_die("out of host memory for a cuDNN attribute");
    return true;
}

/* Finds the graph of a finished descriptor from the descriptors that it was made of. */
static void finish_locked(struct ph_cudnn_descriptor *bag)
{
    struct ph_cudnn_descriptor *child = NULL;
    bag->finalized = true;
    switch (bag->type) {
    case CUDNN_ENGINEHEUR:
        ph_cudnn_set_graph(bag, ph_cudnn_child(bag, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0));
        break;
    case CUDNN_ENGINE:
        ph_cudnn_set_graph(bag, ph_cudnn_child(bag, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 0));
        break;
    case CUDNN_ENGINECFG:
        child = ph_cudnn_child(bag, CUDNN_ATTR_ENGINECFG_ENGINE, 0);
        if (child) ph_cudnn_set_graph(bag, child->graph);
        break;
    case CUDNN_EXECUTION_PLAN:
        child = ph_cudnn_child(bag, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
        if (child) ph_cudnn_set_graph(bag, child->graph);
        bag->signature.count = 0;
        if (bag->graph && ph_cudnn_find(bag->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS))
            ph_cudnn_signature(&bag->signature, bag->graph);
        break;
    default: break;
    }
}

/* ---- the graph API ---- */
PH_API(int, cudnnBackendCreateDescriptor, (int type, void **descriptor))
{
    int status = PH_REAL(cudnnBackendCreateDescriptor)(type, descriptor);
    /* a variant pack holds addresses, and a new one is made for every execution */
    if (status != CUDNN_SUCCESS || type == CUDNN_VARIANT_PACK) return status;
    pthread_mutex_lock(&bags_lock);
    add_locked(*descriptor, type);
    pthread_mutex_unlock(&bags_lock);
    return status;
}

PH_API(int, cudnnBackendDestroyDescriptor, (void *descriptor))
{
    pthread_mutex_lock(
        &bags_lock); /* first: the address may belong to a new descriptor a moment later */
    if (descriptor) remove_locked(descriptor);
    pthread_mutex_unlock(&bags_lock);
    return PH_REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

PH_API(int, cudnnBackendSetAttribute,
       (void *descriptor, int name, int type, int64_t count, const void *values))
{
    int status = PH_REAL(cudnnBackendSetAttribute)(descriptor, name, type, count, values);
    if (status != CUDNN_SUCCESS) return status;
    pthread_mutex_lock(&bags_lock);
    struct ph_cudnn_descriptor *bag = find_locked(descriptor);
    if (bag) keep_locked(bag, name, type, count, values);
    pthread_mutex_unlock(&bags_lock);
    return status;
}

PH_API(int, cudnnBackendFinalize, (void *descriptor))
{
    int status = PH_REAL(cudnnBackendFinalize)(descriptor);
    if (status != CUDNN_SUCCESS) return status;
    pthread_mutex_lock(&bags_lock);
    struct ph_cudnn_descriptor *bag = find_locked(descriptor);
    if (bag) finish_locked(bag);
    pthread_mutex_unlock(&bags_lock);
    return status;
}

/* Descriptors that the library fills belong to the graph of the queried descriptor. */
PH_API(int, cudnnBackendGetAttribute,
       (void *descriptor, int name, int type, int64_t requested, int64_t *count, void *values))
{
    int64_t got = 0;
    int status = PH_REAL(cudnnBackendGetAttribute)(descriptor, name, type, requested, &got, values);
    if (count) *count = got;
    if (status != CUDNN_SUCCESS || type != CUDNN_TYPE_BACKEND_DESCRIPTOR || !values) return status;
    pthread_mutex_lock(&bags_lock);
    struct ph_cudnn_descriptor *asked = find_locked(descriptor);
    for (int64_t i = 0; asked && asked->graph && i < got && i < requested; i++) {
        struct ph_cudnn_descriptor *filled = find_locked(((void **)values)[i]);
        if (filled && filled != asked->graph) ph_cudnn_set_graph(filled, asked->graph);
    }
    pthread_mutex_unlock(&bags_lock);
    return status;
}

PH_API(int, cudnnBackendExecute, (void *handle, void *plan, void *pack))
{
    static _Thread_local struct ph_signature signature;
    void *stream = NULL;
    if (ph_lead_inside()) return PH_REAL(cudnnBackendExecute)(handle, plan, pack);
    ph_host_pause(); /* the host time recorded at a call site must not include ours */
    signature.count = 0;
    pthread_mutex_lock(&bags_lock);
    const struct ph_cudnn_descriptor *bag = find_locked(plan);
    if (bag) ph_signature_copy(&signature, &bag->signature);
    pthread_mutex_unlock(&bags_lock);
    if (!signature.count)
        ph_warn("a cuDNN plan whose operations are not known (loaded from JSON?) is not timed");
    bool good = signature.count && PH_REAL(cudnnGetStream)(handle, &stream) == CUDNN_SUCCESS;
    ph_host_resume();
    if (!good) return PH_REAL(cudnnBackendExecute)(handle, plan, pack);
    uint64_t token = ph_lead_begin(stream, &signature);
    int status = PH_REAL_TIMED(PH_CALL_DNN, PH_REAL(cudnnBackendExecute)(handle, plan, pack));
    status == CUDNN_SUCCESS ? ph_lead_end(token) : ph_lead_cancel(token);
    return status;
}

/* ---- batch normalisation of the older API ---- */
/* False: part of another call, or arguments that the library will refuse. */
static bool norm(struct ph_signature *signature, void *handle, void **stream, const char *name,
                 int mode, int operations, const void *x, const void *parameters)
{
    int type, parameter_type, dimensions, ignored, dims[MOST_DIMENSIONS], strides[MOST_DIMENSIONS],
        others[MOST_DIMENSIONS], more[MOST_DIMENSIONS];
    signature->count = 0;
    if (ph_lead_inside() || !handle || !x || !parameters ||
        PH_REAL(cudnnGetStream)(handle, stream) != CUDNN_SUCCESS)
        return false;
    if (PH_REAL(cudnnGetTensorNdDescriptor)(x, MOST_DIMENSIONS, &type, &dimensions, dims,
                                            strides) != CUDNN_SUCCESS ||
        PH_REAL(cudnnGetTensorNdDescriptor)(parameters, MOST_DIMENSIONS, &parameter_type, &ignored,
                                            others, more) != CUDNN_SUCCESS)
        return false;
    ph_cudnn_norm_signature(signature, name, mode, operations, type, parameter_type, dimensions,
                            dims, strides);
    return true;
}

#define NORM(name, mode, operations, x, parameters, call)                                     \
    do {                                                                                      \
        static _Thread_local struct ph_signature signature;                                   \
        void *stream;                                                                         \
        ph_host_pause();                                                                      \
        bool ours = norm(&signature, handle, &stream, name, mode, operations, x, parameters); \
        ph_host_resume();                                                                     \
        if (!ours) return call;                                                               \
        uint64_t token = ph_lead_begin(stream, &signature);                                   \
        int status = PH_REAL_TIMED(PH_CALL_DNN, call);                                        \
        status == CUDNN_SUCCESS ? ph_lead_end(token) : ph_lead_cancel(token);                 \
        return status;                                                                        \
    } while (0)

#define FORWARD                                                                                 \
    void *handle, int mode, int operations, const void *alpha, const void *beta, const void *x, \
        const void *x_data, const void *z, const void *z_data, const void *y, void *y_data,     \
        const void *parameters, const void *scale, const void *bias, double factor,             \
        void *running_mean, void *running_variance, double epsilon, void *saved_mean,           \
        void *saved_variance, const void *activation, void *workspace, size_t workspace_bytes,  \
        void *reserve, size_t reserve_bytes
PH_API(int, cudnnBatchNormalizationForwardTrainingEx, (FORWARD))
{
    NORM("cudnnBatchNormalizationForwardTraining", mode, operations, x, parameters,
         PH_REAL(cudnnBatchNormalizationForwardTrainingEx)(
             handle, mode, operations, alpha, beta, x, x_data, z, z_data, y, y_data, parameters,
             scale, bias, factor, running_mean, running_variance, epsilon, saved_mean,
             saved_variance, activation, workspace, workspace_bytes, reserve, reserve_bytes));
}

#define INFERENCE                                                                    \
    void *handle, int mode, const void *alpha, const void *beta, const void *x,      \
        const void *x_data, const void *y, void *y_data, const void *parameters,     \
        const void *scale, const void *bias, const void *mean, const void *variance, \
        double epsilon
PH_API(int, cudnnBatchNormalizationForwardInference, (INFERENCE))
{
    NORM("cudnnBatchNormalizationForwardInference", mode, 0, x, parameters,
         PH_REAL(cudnnBatchNormalizationForwardInference)(handle, mode, alpha, beta, x, x_data, y,
                                                          y_data, parameters, scale, bias, mean,
                                                          variance, epsilon));
}

#define BACKWARD                                                                                 \
    void *handle, int mode, int operations, const void *alpha_data, const void *beta_data,       \
        const void *alpha_parameters, const void *beta_parameters, const void *x,                \
        const void *x_data, const void *y, const void *y_data, const void *dy,                   \
        const void *dy_data, const void *dz, void *dz_data, const void *dx, void *dx_data,       \
        const void *parameters, const void *scale, const void *bias, void *scale_gradient,       \
        void *bias_gradient, double epsilon, const void *saved_mean, const void *saved_variance, \
        const void *activation, void *workspace, size_t workspace_bytes, void *reserve,          \
        size_t reserve_bytes
PH_API(int, cudnnBatchNormalizationBackwardEx, (BACKWARD))
{
    NORM("cudnnBatchNormalizationBackward", mode, operations, x, parameters,
         PH_REAL(cudnnBatchNormalizationBackwardEx)(
             handle, mode, operations, alpha_data, beta_data, alpha_parameters, beta_parameters, x,
             x_data, y, y_data, dy, dy_data, dz, dz_data, dx, dx_data, parameters, scale, bias,
             scale_gradient, bias_gradient, epsilon, saved_mean, saved_variance, activation,
             workspace, workspace_bytes, reserve, reserve_bytes));
}
