/* tensors.cpp - device tensors seen from the CPU. See tensors.h. */
#include "values/tensors.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "values/host_api.h"

namespace phantora
{

size_t span_bytes(const at::Tensor &tensor)
{
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++) {
        if (tensor.size(i) == 0) return 0;
        last += (tensor.size(i) - 1) * tensor.stride(i);
    }
    return static_cast<size_t>(last + 1) * tensor.element_size();
}

void *address(const at::Tensor &tensor)
{
    /* Not data_ptr(): it would materialise copy-on-write storage, and it throws for tensors without
     * storage. */
    const auto &storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
    auto *base = static_cast<char *>(const_cast<void *>(storage.data()));
    return base ? base + tensor.storage_offset() * tensor.element_size() : nullptr;
}

/* Tensors with any of these keys are wrappers, or have no bytes. */
static constexpr c10::DispatchKeySet kWrapped = c10::DispatchKeySet({
    c10::DispatchKey::Python,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::ZeroTensor,
});

bool is_plain(const at::Tensor &tensor)
{
    return !tensor.key_set().has_any(kWrapped) && tensor.layout() == c10::kStrided &&
           !tensor.is_meta() && tensor.has_storage() &&
           !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

Size size_of(const at::Tensor &tensor)
{
    if (!tensor.defined()) return Size::kSmall;
    if (!is_plain(tensor)) return Size::kOpaque;
    if (!tensor.is_cuda()) return tensor.is_cpu() ? Size::kSmall : Size::kOpaque;
    auto *impl = tensor.unsafeGetTensorImpl();
    size_t limit = tensor.dim() == 1 && tensor.scalar_type() == at::kByte ? kObjectBytes
                   : host.balanced && is_index(tensor)                    ? kIndexBytes
                                                                          : kSmallBytes;
    if (static_cast<size_t>(impl->numel()) * impl->itemsize() > limit || span_bytes(tensor) > limit)
        return Size::kLarge;
    return impl->numel() == 0 || host.is_device(address(tensor)) ? Size::kSmall : Size::kOpaque;
}

bool is_index(const at::Tensor &tensor)
{
    return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

bool readable_zeros(const at::Tensor &tensor)
{
    return on_device(tensor) && size_of(tensor) == Size::kLarge && tensor.is_floating_point() &&
           tensor.nbytes() <= kIndexBytes && span_bytes(tensor) <= kIndexBytes &&
           host.is_device(address(tensor));
}

void settle(const c10::IValue &value, bool written, bool touched)
{
    each_tensor(value, [=](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kSmall) return;
        size_t bytes = span_bytes(tensor);
        if (!bytes) return;
        host.before_read(address(tensor), bytes);
        if (written || (touched && bytes <= kSmallBytes)) host.mark_dirty(address(tensor), bytes);
    });
}

/* ---- which bytes are defined ---- */
template <class Visit>
static void each_run(const at::Tensor &tensor, Visit visit)
{
    constexpr int64_t kMostRuns = 65536; /* with more runs, the gaps between them count as well */
    if (!on_device(tensor) || !tensor.has_storage() || tensor.numel() == 0) return;
    auto *base = static_cast<char *>(address(tensor));
    size_t run = tensor.element_size();
    if (tensor.is_non_overlapping_and_dense())
        return visit(base, run * static_cast<size_t>(tensor.numel()));
    /* (stride in bytes, size); the innermost ones become part of the run */
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (int64_t i = 0; i < tensor.dim(); i++)
        if (tensor.size(i) > 1 && tensor.stride(i) > 0)
            dims.emplace_back(tensor.stride(i) * tensor.element_size(), tensor.size(i));
    std::sort(dims.begin(), dims.end());
    size_t inner = 0;
    for (; inner < dims.size() && dims[inner].first == static_cast<int64_t>(run); inner++)
        run *= static_cast<size_t>(dims[inner].second);
    int64_t runs = 1;
    for (size_t i = inner; i < dims.size(); i++) runs *= dims[i].second;
    if (runs > kMostRuns) return visit(base, span_bytes(tensor));
    for (int64_t i = 0; i < runs; i++) {
        int64_t offset = 0, rest = i;
        for (size_t d = inner; d < dims.size(); d++)
            offset += rest % dims[d].second * dims[d].first, rest /= dims[d].second;
        visit(base + offset, run);
    }
}

static bool wrapped(const at::Tensor &tensor) { return size_of(tensor) == Size::kOpaque; }

bool any_undefined(const c10::IValue &value)
{
    return any_tensor(value, [](const at::Tensor &tensor) {
        if (!tensor.defined() || wrapped(tensor) || tensor.numel() == 0) return false;
        if (tensor.is_cpu() && host.any_hollow)
            return host.any_hollow(address(tensor), span_bytes(tensor)) != 0;
        bool found = false;
        each_run(tensor, [&](const char *at, size_t bytes) {
            found = found || host.any_undefined(at, bytes);
        });
        return found;
    });
}

void mark(const c10::IValue &value, bool undefined)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || wrapped(tensor)) return;
        each_run(tensor, [&](const char *at, size_t bytes) {
            (undefined ? host.mark_undefined : host.mark_defined)(at, bytes);
        });
    });
}

at::Tensor cpu_alias(const at::Tensor &tensor)
{
    if (!on_device(tensor)) return tensor;
    auto options = at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU);
    /* An empty tensor may grow: the CPU may compute what the GPU's algorithm leaves out (the ranks
     * of a least squares solution). */
    if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    at::Tensor same = at::from_blob(address(tensor), tensor.sizes(), tensor.strides(), options);
    /* the alias has the same conjugate and negative bits */
    if (tensor.is_conj()) same._set_conj(true);
    if (tensor.is_neg()) same._set_neg(true);
    return same;
}

c10::IValue on_cpu(const c10::IValue &value)
{
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    return map_tensors(value, cpu_alias);
}

} // namespace phantora
