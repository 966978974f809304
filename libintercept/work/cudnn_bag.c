/* work/cudnn_bag.c - a backend descriptor as a bag of the attributes that were set on it.
 *
 * Why it exists: the signature of an operation graph is made from bags alone. A simulated rank's
 * descriptors are bags (simulated/math/cudnn_backend.c). A leader keeps one bag for each real
 * descriptor (leader/gpu/dnn.c). */
#include "work/cudnn.h"
#include "backend.h"

#include <stdlib.h>
#include <string.h>

struct ph_cudnn_descriptor *ph_cudnn_bag(int type)
{
    struct ph_cudnn_descriptor *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->magic = CUDNN_BAG_MAGIC;
    made->type = type;
    atomic_init(&made->references, 1);
    return made;
}

void ph_cudnn_hold(struct ph_cudnn_descriptor *descriptor)
{
    atomic_fetch_add(&descriptor->references, 1);
}

static void clear_attribute(struct ph_cudnn_attribute *attribute)
{
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < attribute->count; i++)
            ph_cudnn_release(((struct ph_cudnn_descriptor **)attribute->values)[i]);
    free(attribute->values);
}

void ph_cudnn_release(struct ph_cudnn_descriptor *descriptor)
{
    if (atomic_fetch_sub(&descriptor->references, 1) != 1) return;
    for (int i = 0; i < descriptor->attribute_count; i++)
        clear_attribute(&descriptor->attributes[i]);
    if (descriptor->graph != NULL) ph_cudnn_release(descriptor->graph);
    if (descriptor->real != NULL && ph_backend.cudnn_destroy != NULL)
        ph_backend.cudnn_destroy(descriptor->real);
    ph_signature_free(&descriptor->signature);
    descriptor->magic = 0;
    free(descriptor->attributes);
    free(descriptor);
}

void ph_cudnn_set_graph(struct ph_cudnn_descriptor *descriptor, struct ph_cudnn_descriptor *graph)
{
    if (graph != NULL) ph_cudnn_hold(graph);
    if (descriptor->graph != NULL) ph_cudnn_release(descriptor->graph);
    descriptor->graph = graph;
}

const struct ph_cudnn_attribute *ph_cudnn_find(const struct ph_cudnn_descriptor *descriptor,
                                               int name)
{
    for (int i = 0; i < descriptor->attribute_count; i++)
        if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
    return NULL;
}

struct ph_cudnn_descriptor *ph_cudnn_child(const struct ph_cudnn_descriptor *descriptor, int name,
                                           int64_t index)
{
    const struct ph_cudnn_attribute *attribute = ph_cudnn_find(descriptor, name);
    if (attribute == NULL || attribute->type != CUDNN_TYPE_BACKEND_DESCRIPTOR ||
        index >= attribute->count)
        return NULL;
    return ((struct ph_cudnn_descriptor **)attribute->values)[index];
}

bool ph_cudnn_put(struct ph_cudnn_descriptor *descriptor, int name, int type, int64_t count,
                  void *values)
{
    int at = 0;
    while (at < descriptor->attribute_count && descriptor->attributes[at].name < name) at++;
    bool there = at < descriptor->attribute_count && descriptor->attributes[at].name == name;
    if (there) {
        clear_attribute(&descriptor->attributes[at]);
    } else {
        size_t bytes =
            sizeof(struct ph_cudnn_attribute) * (size_t)(descriptor->attribute_count + 1);
        struct ph_cudnn_attribute *more = realloc(descriptor->attributes, bytes);
        if (more == NULL) return false;
        descriptor->attributes = more;
        memmove(more + at + 1, more + at,
                sizeof *more * (size_t)(descriptor->attribute_count - at));
        descriptor->attribute_count++;
    }
    descriptor->attributes[at] = (struct ph_cudnn_attribute){name, type, count, values};
    return true;
}
