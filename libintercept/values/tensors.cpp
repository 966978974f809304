/* tensors.cpp - device tensors seen from the CPU. See tensors.h. */
#include "tensors.h"

#include <ATen/ops/from_blob.h>

#include "face.h"

namespace phantora {

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
    /* Not data_ptr(): that would materialise copy-on-write storage, and throws for tensors without any. */
    const auto &storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
    auto *base = static_cast<char *>(const_cast<void *>(storage.data()));
    return base ? base + tensor.storage_offset() * tensor.element_size() : nullptr;
}

/* Tensors with any of these are wrappers, or have no bytes. */
static constexpr c10::DispatchKeySet kWrapped = c10::DispatchKeySet({
    c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::ZeroTensor,
});

Size size_of(const at::Tensor &tensor)
{
    if (!tensor.defined()) return Size::kSmall;
    if (tensor.key_set().has_any(kWrapped) || tensor.layout() != c10::kStrided || tensor.is_meta() || !tensor.has_storage())
        return Size::kOpaque;
    if (!tensor.is_cuda()) return tensor.is_cpu() ? Size::kSmall : Size::kOpaque;
    auto *impl = tensor.unsafeGetTensorImpl();
    if (impl->has_symbolic_sizes_strides()) return Size::kOpaque;
    size_t limit = tensor.dim() == 1 && tensor.scalar_type() == at::kByte ? kObjectBytes : kSmallBytes;
    if (static_cast<size_t>(impl->numel()) * impl->itemsize() > limit || span_bytes(tensor) > limit) return Size::kLarge;
    return impl->numel() == 0 || face.is_device(address(tensor)) ? Size::kSmall : Size::kOpaque;
}

at::Tensor alias(const at::Tensor &tensor)
{
    if (!on_device(tensor)) return tensor;
    static char nothing;
    void *pointer = tensor.numel() ? address(tensor) : &nothing;
    at::Tensor same = at::from_blob(pointer, tensor.sizes(), tensor.strides(),
                                    at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU));
    if (tensor.is_conj()) same._set_conj(true); /* bytes that stand for their conjugates or negatives still do */
    if (tensor.is_neg()) same._set_neg(true);
    return same;
}

c10::IValue on_cpu(const c10::IValue &value)
{
    if (value.isTensor()) return alias(value.toTensor());
    if (value.isList()) {
        auto list = value.toList();
        auto copy = c10::impl::GenericList(list.elementType());
        copy.reserve(list.size());
        for (const c10::IValue &item : value.toListRef()) copy.push_back(on_cpu(item));
        return copy;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
    return value;
}

}  // namespace phantora
