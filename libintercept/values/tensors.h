/* tensors.h - device tensors seen from the CPU.
 *
 * Why it exists: the device window is a mapping of this process, so a CUDA tensor's address can be
 * read and written as it stands. These functions say which tensors that makes sense for, and make
 * the CPU tensors that share their bytes. */
#ifndef PHANTORA_VALUES_TENSORS_H
#define PHANTORA_VALUES_TENSORS_H
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>

namespace phantora
{

/* opaque: a subclass, a fake: its inner operators come anyway */
enum class Size { kSmall, kLarge, kOpaque };

/* Bytes from the first to the last element, by the strides; 0 for an empty tensor. */
size_t span_bytes(const at::Tensor &tensor);

/* Where a tensor's first element lies; nullptr for a tensor without memory. */
void *address(const at::Tensor &tensor);

/* Whether a tensor has bytes of its own, and sizes: no subclass, no fake, not sparse. */
bool is_plain(const at::Tensor &tensor);

/* What can be done with a CUDA tensor. Undefined and CPU tensors count as small. Small ones have
 * values. */
Size size_of(const at::Tensor &tensor);

/* Whether a tensor of floats is large, but not too large to be looked at as the zeros that it
 * holds. */
bool readable_zeros(const at::Tensor &tensor);

bool is_index(const at::Tensor &tensor); /* of integers or booleans */

inline bool on_device(const at::Tensor &tensor) { return tensor.defined() && tensor.is_cuda(); }

/* Calls visit(tensor) for every tensor in `value`, lists included. */
template <class Visit>
void each_tensor(const c10::IValue &value, Visit visit)
{
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isList()) {
        for (const c10::IValue &item : value.toListRef()) {
            if (item.isTensor()) visit(item.toTensor());
        }
    }
}

/* Device memory of the small tensors in `value` is about to be read here, or `written`: what is
 * owed to it arrives first. `touched`: to be read by a kernel that may write to it all the same, as
 * batch norms do to what their schemas call inputs. */
void settle(const c10::IValue &value, bool written = false, bool touched = false);

/* Whether any device tensor in `value` has bytes that nothing computed. What is owed to it must
 * have been settled. */
bool any_unknown(const c10::IValue &value);

/* Says of every byte of the device tensors in `value` that nothing has computed it, or that it is
 * known. */
void mark(const c10::IValue &value, bool unknown);

/* A CPU tensor over the bytes of a small CUDA tensor; any other tensor as it is. */
at::Tensor alias(const at::Tensor &tensor);

/* `value` with every CUDA tensor replaced by its alias and every CUDA device by the CPU. */
c10::IValue on_cpu(const c10::IValue &value);

} // namespace phantora
#endif
