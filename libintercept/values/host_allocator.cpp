/* host_allocator.cpp - PyTorch's allocator for host memory. See hollow.h.
 *
 * Large blocks come from the interceptor's reserved range, all others from PyTorch's own allocator.
 */
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "values/hollow.h"
#include "values/host_api.h"

namespace phantora
{
namespace
{

c10::Allocator *torch_allocator;
c10::DeleterFnPtr torch_delete;

void delete_any(void *pointer)
{
    if (host.is_block(pointer))
        host.host_free(pointer);
    else
        torch_delete(pointer);
}

struct HostAllocator : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        void *block = bytes >= kHollowBytes ? host.host_alloc(bytes) : nullptr;
        if (block) {
            static std::atomic<bool> watching{false};
            if (host.hollows() && !watching.exchange(true)) hollow_host_tensors();
        } else {
            block = torch_allocator->raw_allocate(bytes);
        }
        return {block, block, &delete_any, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }
    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        default_copy_data(to, from, bytes);
    }
};

} // namespace

void allocate_host_tensors()
{
    static HostAllocator allocator;
    torch_allocator = c10::GetCPUAllocator();
    torch_delete = torch_allocator->raw_deleter();
    /* another allocator without a deleter of its own cannot be wrapped */
    if (torch_delete) c10::SetCPUAllocator(&allocator, /*priority=*/255);
}

} // namespace phantora
