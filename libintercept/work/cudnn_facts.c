/* work/cudnn_facts.c - which descriptors, attributes and types a release of cuDNN has.
 *
 * Why it exists: one interceptor serves every torch, and each brings another cuDNN. The tables come
 * from the headers of all of them (tools/cudnn_tables.py). Rule: what a release is known to lack is
 * refused; of what no table has, nothing is claimed. */
#include "work/cudnn.h"

struct type_facts {
    unsigned char bytes;
    int since;
};

struct attribute_facts {
    short name, descriptor;
    int since;
};

#include "work/cudnn_tables.gen.h"

enum {
    TYPE_COUNT = sizeof TYPES / sizeof *TYPES,
    DESCRIPTOR_COUNT = sizeof DESCRIPTORS / sizeof *DESCRIPTORS,
    ATTRIBUTE_COUNT = sizeof ATTRIBUTES / sizeof *ATTRIBUTES,
    MOST_TYPES = 256, /* far above any release */
    ENUMERATION_BYTES = 4,
};

static enum ph_cudnn_known in(size_t release, int since)
{
    return release >= (size_t)since ? CUDNN_HAS : CUDNN_LACKS;
}

size_t ph_cudnn_element_bytes(int type)
{
    if (type < 0 || type >= MOST_TYPES) return 0;
    return type < TYPE_COUNT ? TYPES[type].bytes : ENUMERATION_BYTES;
}

enum ph_cudnn_known ph_cudnn_has_type(size_t release, int type)
{
    if (type < 0 || type >= MOST_TYPES) return CUDNN_LACKS;
    return type < TYPE_COUNT ? in(release, TYPES[type].since) : CUDNN_UNHEARD;
}

enum ph_cudnn_known ph_cudnn_has_descriptor(size_t release, int descriptor)
{
    if (descriptor < 0) return CUDNN_LACKS;
    return descriptor < DESCRIPTOR_COUNT ? in(release, DESCRIPTORS[descriptor]) : CUDNN_UNHEARD;
}

enum ph_cudnn_known ph_cudnn_has_attribute(size_t release, int descriptor, int name)
{
    int low = 0, high = ATTRIBUTE_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ATTRIBUTES[middle].name < name)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == ATTRIBUTE_COUNT || ATTRIBUTES[low].name != name) return CUDNN_UNHEARD;
    if (ATTRIBUTES[low].descriptor != descriptor) return CUDNN_LACKS;
    return in(release, ATTRIBUTES[low].since);
}
