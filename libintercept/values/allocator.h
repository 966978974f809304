/* allocator.h - what PyTorch's caching allocator holds (allocator.cpp). */
#ifndef PHANTORA_VALUES_ALLOCATOR_H
#define PHANTORA_VALUES_ALLOCATOR_H
#include <cstdint>

namespace phantora
{

/* peaks: since the job has last reset them */
struct AllocatorBytes {
    uint32_t device;
    uint64_t allocated, reserved, peak_allocated, peak_reserved;
};

/* Of the calling thread's current device. False when there is no allocator or no device yet. */
bool allocator_bytes(AllocatorBytes *bytes);

} // namespace phantora
#endif
