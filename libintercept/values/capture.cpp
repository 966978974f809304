/* capture.cpp - small operators of a CUDA graph. See capture.h. */
#include "values/capture.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{

/* Through torch's C interface: torch 2.9 has no other that needs no headers of CUDA. */
void *current_stream()
{
    using Get = int32_t (*)(int32_t device, void **stream);
    static const Get get = [] {
        void *torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        return torch ? reinterpret_cast<Get>(dlsym(torch, "aoti_torch_get_current_cuda_stream"))
                     : nullptr;
    }();
    int32_t device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
    void *stream = nullptr;
    TORCH_CHECK(get && get(device, &stream) == 0, "the current stream is not known");
    return stream;
}

namespace
{

void run_kept(void *data, void *)
{
    try {
        (*static_cast<std::function<void()> *>(data))();
    } catch (const std::exception &) {
        counts.failed++;
    }
}

void release_kept(void *data) { delete static_cast<std::function<void()> *>(data); }

} // namespace

bool capturing()
{
    return host.captures && host.captures() && host.capture_check(current_stream());
}

void at_launch(std::function<void()> what)
{
    host.capture_append(current_stream(), run_kept, release_kept,
                        new std::function<void()>(std::move(what)));
}

at::Tensor captured_view(const at::Tensor &tensor)
{
    if (!tensor.defined() || size_of(tensor) == Size::kOpaque) return tensor;
    if (!on_device(tensor)) return kept_copy(tensor);
    static char nothing;
    auto options = at::TensorOptions().dtype(tensor.dtype()).device(tensor.device());
    at::Tensor same = at::for_blob(tensor.numel() ? address(tensor) : &nothing, tensor.sizes())
                          .strides(tensor.strides())
                          .options(options)
                          .target_device(tensor.device())
                          .make_tensor();
    if (tensor.is_conj()) same._set_conj(true);
    if (tensor.is_neg()) same._set_neg(true);
    return same;
}

c10::IValue captured_view(const c10::IValue &value)
{
    return map_tensors(value, [](const at::Tensor &tensor) { return captured_view(tensor); });
}

} // namespace phantora
