/* tensormap.c - tensor maps: what a kernel of compute capability 9.0 hands to the tensor memory accelerator.
 *
 * Why it exists: CUTLASS's grouped GEMM (every MoE layer), Triton and flash attention encode one on the host before they
 * launch. The 128 bytes are opaque by contract ("only accessed through CUDA APIs and PTX"), so ours hold the arguments; the
 * rules that cuda.h documents are checked, because a job may try a layout and go on with another when it is refused. (A null
 * address is none of them: grouped GEMMs encode without one and fill it in on the GPU.) */
#include "cudart.h"
#include <string.h>

enum { MAX_RANK = 5, MAX_BOX = 256, MAX_ELEMENT_STRIDE = 8, DATA_TYPES = 13, SWIZZLES = 4, INTERLEAVES = 3, L2_PROMOTIONS = 4 };
enum { INTERLEAVE_NONE, INTERLEAVE_16B, INTERLEAVE_32B };
enum { SWIZZLE_NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B };
#define MAX_DIM (UINT64_C(1) << 32)
#define MAX_STRIDE (UINT64_C(1) << 40)

/* bytes and kind of CUtensorMapDataType, in its order; the packed types behind these need compute capability 10.0 */
static const struct { uint8_t bytes; bool real; } types[DATA_TYPES] = {
    { 1, false }, { 2, false }, { 4, false }, { 4, false }, { 8, false }, { 8, false }, /* u8, u16, u32, i32, u64, i64 */
    { 2, true }, { 4, true }, { 8, true }, { 2, true }, { 4, true }, { 4, true }, { 4, true }, /* f16, f32, f64, bf16, ftz, tf32 */
};

struct tensor_map {
    uint64_t address, size[MAX_RANK], stride[MAX_RANK - 1];
    uint16_t box[MAX_RANK]; /* 256 does not fit a byte */
    uint8_t element_stride[MAX_RANK], type, rank, interleave, swizzle, promotion, fill;
};
_Static_assert(sizeof(struct tensor_map) <= 128, "CUtensorMap holds 128 bytes");

static bool aligned(uint64_t value, uint64_t to) { return value % to == 0; }

static bool tile_fits(int type, uint32_t box, int interleave, int swizzle)
{
    uint32_t bytes = box * types[type].bytes;
    if (interleave == INTERLEAVE_32B) return swizzle == SWIZZLE_32B;
    if (interleave != INTERLEAVE_NONE) return true;
    return aligned(bytes, 16) && (swizzle == SWIZZLE_NONE || bytes <= 16u << swizzle);
}

PH_EXPORT int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *size, const uint64_t *stride,
                                     const uint32_t *box, const uint32_t *element_stride, int interleave, int swizzle, int promotion, int fill);
PH_EXPORT int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *size, const uint64_t *stride,
                                     const uint32_t *box, const uint32_t *element_stride, int interleave, int swizzle, int promotion, int fill)
{
    if (type >= DATA_TYPES || swizzle >= SWIZZLES) { /* what newer GPUs added, or nothing at all: this GPU cannot */
        ph_unsupported("cuTensorMapEncodeTiled with a layout of compute capability 10.0");
        return CUDA_NOT_SUPPORTED;
    }
    if (!map || !aligned((uintptr_t)map, 64) || type < 0 || !size || !box || !element_stride || (rank > 1 && !stride)) return CUDA_INVALID_VALUE;
    if (interleave < 0 || interleave >= INTERLEAVES || swizzle < 0 || promotion < 0 || promotion >= L2_PROMOTIONS) return CUDA_INVALID_VALUE;
    if (rank < (interleave == INTERLEAVE_NONE ? 1 : 3) || rank > MAX_RANK) return CUDA_INVALID_VALUE;
    if (fill < 0 || fill > 1 || (fill && !types[type].real)) return CUDA_INVALID_VALUE;
    const uint64_t alignment = interleave == INTERLEAVE_32B ? 32 : 16;
    if (!aligned((uintptr_t)address, alignment) || !tile_fits(type, box[0], interleave, swizzle)) return CUDA_INVALID_VALUE;

    struct tensor_map made = { .address = (uintptr_t)address, .type = (uint8_t)type, .rank = (uint8_t)rank, .interleave = (uint8_t)interleave,
                               .swizzle = (uint8_t)swizzle, .promotion = (uint8_t)promotion, .fill = (uint8_t)fill };
    for (uint32_t i = 0; i < rank; i++) {
        /* the first element stride is ignored without interleaving */
        bool strided = i > 0 || interleave != INTERLEAVE_NONE;
        if (!size[i] || size[i] > MAX_DIM || !box[i] || box[i] > MAX_BOX) return CUDA_INVALID_VALUE;
        if (strided && (!element_stride[i] || element_stride[i] > MAX_ELEMENT_STRIDE)) return CUDA_INVALID_VALUE;
        if (i + 1 < rank && (!aligned(stride[i], alignment) || stride[i] >= MAX_STRIDE)) return CUDA_INVALID_VALUE;
        made.size[i] = size[i];
        made.box[i] = (uint16_t)box[i];
        made.element_stride[i] = strided ? (uint8_t)element_stride[i] : 1;
        if (i + 1 < rank) made.stride[i] = stride[i];
    }
    memset(map, 0, 128);
    memcpy(map, &made, sizeof made);
    return CUDA_OK;
}

PH_EXPORT int cuTensorMapReplaceAddress(void *map, void *address);
PH_EXPORT int cuTensorMapReplaceAddress(void *map, void *address)
{
    struct tensor_map *made = map;
    if (!made || !aligned((uintptr_t)map, 64) || !made->rank || made->rank > MAX_RANK) return CUDA_INVALID_VALUE;
    if (!aligned((uintptr_t)address, made->interleave == INTERLEAVE_32B ? 32 : 16)) return CUDA_INVALID_VALUE;
    made->address = (uintptr_t)address;
    return CUDA_OK;
}
