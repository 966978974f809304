/* allocator.cpp - reads the figures of PyTorch's caching allocator.
 *
 * Why it exists: the trace logs each change of memory, and the report needs peaks even of a process
 * that is killed before it can say them. Rule: it asks through the interface that all releases have
 * (c10::DeviceAllocator), and never makes an allocator or a device. */
#include "values/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <exception>

namespace phantora
{
namespace
{

c10::DeviceAllocator *find_allocator()
{
    auto *found = dynamic_cast<c10::DeviceAllocator *>(c10::GetAllocator(c10::DeviceType::CUDA));
    return found && found->initialized() ? found : nullptr;
}

} // namespace

bool allocator_bytes(AllocatorBytes *bytes)
{
    static std::atomic<c10::DeviceAllocator *> allocator;
    try {
        c10::DeviceAllocator *known = allocator.load(std::memory_order_relaxed);
        if (!known) allocator = known = find_allocator();
        if (!known) return false;
        const auto *guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
        auto device = guard->getDevice().index();
        constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        auto stats = known->getDeviceStats(device);
        bytes->device = static_cast<uint32_t>(device);
        bytes->allocated = static_cast<uint64_t>(stats.allocated_bytes[kAll].current);
        bytes->reserved = static_cast<uint64_t>(stats.reserved_bytes[kAll].current);
        bytes->peak_allocated = static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
        bytes->peak_reserved = static_cast<uint64_t>(stats.reserved_bytes[kAll].peak);
        return true;
    } catch (const std::exception &) { /* no device yet */
        return false;
    }
}

} // namespace phantora
