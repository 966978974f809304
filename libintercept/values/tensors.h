/* tensors.h - device tensors seen from the CPU.
 *
 * Why it exists: the device window is a mapping of this process, so the CPU can read and write at a
 * CUDA tensor's address. These functions decide for which tensors that makes sense, and make CPU
 * tensors that share their bytes. */
#ifndef PHANTORA_VALUES_TENSORS_H
#define PHANTORA_VALUES_TENSORS_H
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>

namespace phantora
{

/* opaque: a subclass or a fake; its inner operators are observed themselves */
enum class Size { kSmall, kLarge, kOpaque };

/* Bytes from the first to the last element, by the strides; 0 for an empty tensor. */
size_t span_bytes(const at::Tensor &tensor);

/* The address of a tensor's first element; nullptr for a tensor without memory. */
void *address(const at::Tensor &tensor);

/* Whether a tensor has its own bytes and sizes: no subclass, no fake, not sparse. */
bool is_plain(const at::Tensor &tensor);

/* Classifies a CUDA tensor. Undefined and CPU tensors count as small. Small tensors have values. */
Size size_of(const at::Tensor &tensor);

/* Whether a tensor of floats is large, but not too large to be read as the zeros that it holds. */
bool readable_zeros(const at::Tensor &tensor);

bool is_index(const at::Tensor &tensor); /* of integers or booleans */

inline bool on_device(const at::Tensor &tensor) { return tensor.defined() && tensor.is_cuda(); }

/* Whether `is` holds for any tensor in `value`, including list members. */
template <class Predicate>
bool any_tensor(const c10::IValue &value, Predicate is)
{
    if (value.isTensor()) return is(value.toTensor());
    if (!value.isList()) return false;
    for (const c10::IValue &item : value.toListRef())
        if (item.isTensor() && is(item.toTensor())) return true;
    return false;
}

template <class Predicate>
bool any_tensor(c10::ArrayRef<c10::IValue> values, Predicate is)
{
    for (const c10::IValue &value : values)
        if (any_tensor(value, is)) return true;
    return false;
}

/* Calls visit(tensor) for every tensor in `value`, including list members. */
template <class Visit>
void each_tensor(const c10::IValue &value, Visit visit)
{
    any_tensor(value, [&](const at::Tensor &tensor) {
        visit(tensor);
        return false;
    });
}

/* `value` with every tensor replaced by change(tensor), including list members. */
template <class Change>
c10::IValue map_tensors(const c10::IValue &value, Change change)
{
    if (value.isTensor()) return change(value.toTensor());
    if (!value.isList()) return value;
    auto list = value.toList();
    auto copy = c10::impl::GenericList(list.elementType());
    copy.reserve(list.size());
    for (const c10::IValue &item : value.toListRef()) copy.push_back(map_tensors(item, change));
    return copy;
}

/* Delivers pending results to the device memory of the small tensors in `value`, which is about to
 * be read here, or `written`. `touched`: a kernel that reads it may also write to it, as batch
 * norms do to arguments that their schemas call inputs. */
void settle(const c10::IValue &value, bool written = false, bool touched = false);

/* Whether any device tensor in `value` has undefined bytes, or any host tensor hollow ones. Pending
 * results must have been settled. */
bool any_undefined(const c10::IValue &value);

/* Marks every byte of the device tensors in `value` as undefined, or as defined. */
void mark(const c10::IValue &value, bool undefined);

/* A CPU tensor over the bytes of a small CUDA tensor. Any other tensor is returned as it is. */
at::Tensor cpu_alias(const at::Tensor &tensor);

/* `value` with every CUDA tensor replaced by its alias and every CUDA device by the CPU. */
c10::IValue on_cpu(const c10::IValue &value);

} // namespace phantora
#endif
