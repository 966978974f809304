/* tensormap.c - tensor descriptors for Hopper's copy engine (TMA): cuTensorMapEncodeTiled,
 * cuTensorMapReplaceAddress.
 *
 * Why it exists: grouped matrix products (mixture of experts), block-scaled ones and Triton make a
 * descriptor before they launch, and do not launch when that fails. A descriptor is opaque: only
 * kernels read it, and none runs here. So ours holds the request in its own layout. Rule: a request
 * that breaks a condition stated in cuda.h (CUDA 13) is refused with CUDA_ERROR_INVALID_VALUE, as
 * by the driver. The other two encoders (im2col) are refused as not supported. */
#define PH_CLASS PH_SIMULATED
#include "base/api.h"
#include "base/device.h"
#include "work/cudart.h"
#include <string.h>

enum {
    TENSOR_MAP_ACCESS_SUPPORTED = 127,
    /* CUdevice_attribute */ RANKS = 5,
    DESCRIPTOR_BYTES = 128
};
enum { INTERLEAVE_NONE, INTERLEAVE_16B, INTERLEAVE_32B };
enum {
    SWIZZLE_NONE,
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    SWIZZLE_128B_ATOM_32B,
    SWIZZLE_128B_ATOM_32B_FLIP_8B,
    SWIZZLE_128B_ATOM_64B
};
enum {
    L2_PROMOTIONS = 4,
    TYPES = 13 /* the packed 4 and 6 bit types that follow need Blackwell */
};

struct descriptor {
    uint64_t address, strides[RANKS - 1];
    uint32_t sizes_less_one[RANKS]; /* a size may be 2^32 */
    uint16_t box[RANKS];
    uint8_t steps[RANKS], type, rank, interleave, swizzle, l2_promotion, fill;
};
_Static_assert(sizeof(struct descriptor) <= DESCRIPTOR_BYTES, "a CUtensorMap has 128 bytes");

static const uint8_t element_bytes[TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

int cuDeviceGetAttribute(int *value, int attribute, int device);

static int is_float(int type) { return type >= 6; }

static int geometry_fits(int type, unsigned rank, uint64_t address, const uint64_t *sizes,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                         int interleave)
{
    uint64_t alignment = interleave == INTERLEAVE_32B ? 32 : 16;
    if (address % alignment ||
        (box[0] * (uint64_t)element_bytes[type] % 16 && interleave == INTERLEAVE_NONE))
        return 0;
    for (unsigned i = 0; i < rank; i++) {
        if (!sizes[i] || sizes[i] > 1ull << 32 || !box[i] || box[i] > 256) return 0;
        /* with interleaving the first step is ignored */
        if ((i || interleave != INTERLEAVE_NONE) && (!steps[i] || steps[i] > 8)) return 0;
        if (i + 1 < rank && (strides[i] % alignment || strides[i] >= 1ull << 40)) return 0;
    }
    return 1;
}

static int modes_fit(int type, unsigned rank, uint32_t inner, int interleave, int swizzle,
                     int l2_promotion, int fill)
{
    static const uint8_t spans[] = {[SWIZZLE_32B] = 32,
                                    [SWIZZLE_64B] = 64,
                                    [SWIZZLE_128B] = 128,
                                    [SWIZZLE_128B_ATOM_32B] = 128,
                                    [SWIZZLE_128B_ATOM_32B_FLIP_8B] = 128,
                                    [SWIZZLE_128B_ATOM_64B] = 128};
    if (interleave < INTERLEAVE_NONE || interleave > INTERLEAVE_32B ||
        (interleave != INTERLEAVE_NONE && rank < 3))
        return 0;
    if (swizzle < SWIZZLE_NONE || swizzle > SWIZZLE_128B_ATOM_64B ||
        (interleave == INTERLEAVE_32B && swizzle != SWIZZLE_32B))
        return 0;
    if (interleave == INTERLEAVE_NONE && swizzle != SWIZZLE_NONE && inner > spans[swizzle])
        return 0;
    return l2_promotion >= 0 && l2_promotion < L2_PROMOTIONS &&
           (fill == 0 || (fill == 1 && is_float(type)));
}

PH_API(int, cuTensorMapEncodeTiled,
       (void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
        const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
        int swizzle, int l2_promotion, int fill))
{
    int supported = 0;
    if (cuDeviceGetAttribute(&supported, TENSOR_MAP_ACCESS_SUPPORTED, ph_device_current()) ||
        !supported)
        return CUDA_NOT_SUPPORTED;
    if (!map || (uintptr_t)map % 64 || type < 0 || type >= TYPES || !rank || rank > RANKS ||
        !sizes || !box || !steps || (rank > 1 && !strides))
        return CUDA_INVALID_VALUE;
    if (!geometry_fits(type, rank, (uintptr_t)address, sizes, strides, box, steps, interleave) ||
        !modes_fit(type, rank, box[0] * element_bytes[type], interleave, swizzle, l2_promotion,
                   fill))
        return CUDA_INVALID_VALUE;
    struct descriptor own = {.address = (uintptr_t)address,
                             .type = (uint8_t)type,
                             .rank = (uint8_t)rank,
                             .interleave = (uint8_t)interleave,
                             .swizzle = (uint8_t)swizzle,
                             .l2_promotion = (uint8_t)l2_promotion,
                             .fill = (uint8_t)fill};
    for (unsigned i = 0; i < rank; i++) {
        own.sizes_less_one[i] = (uint32_t)(sizes[i] - 1), own.box[i] = (uint16_t)box[i],
        own.steps[i] = (uint8_t)steps[i];
        if (i + 1 < rank) own.strides[i] = strides[i];
    }
    memset(map, 0, DESCRIPTOR_BYTES);
    memcpy(map, &own, sizeof own);
    return CUDA_OK;
}

PH_API(int, cuTensorMapReplaceAddress, (void *map, void *address))
{
    struct descriptor own;
    if (!map || (uintptr_t)map % 64) return CUDA_INVALID_VALUE;
    memcpy(&own, map, sizeof own);
    if ((uintptr_t)address % (own.interleave == INTERLEAVE_32B ? 32 : 16))
        return CUDA_INVALID_VALUE;
    own.address = (uintptr_t)address;
    memcpy(map, &own, sizeof own);
    return CUDA_OK;
}
