/* members.cpp - splits the lists of an operator by member. See members.h. */
#include "values/members.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

bool is_small(const at::Tensor &tensor)
{
    return size_of(tensor) == Size::kSmall &&
           (!on_device(tensor) || span_bytes(tensor) <= kSmallBytes);
}

bool is_list_of(const Members &members, const c10::IValue &value)
{
    return value.isList() && value.toListRef().size() == members.count;
}

c10::IValue take(const c10::IValue &value, const std::vector<size_t> &indices)
{
    auto items = value.toListRef();
    auto taken = c10::impl::GenericList(value.toList().elementType());
    taken.reserve(indices.size());
    for (size_t index : indices) taken.push_back(items[index]);
    return taken;
}

/* One number per member may come as one CPU tensor (`scalars` of _foreach_addcmul). */
bool holds_numbers(const c10::IValue &value, size_t count)
{
    if (!value.isTensor() || count < 2) return false;
    const at::Tensor &tensor = value.toTensor();
    return tensor.defined() && tensor.is_cpu() && tensor.dim() == 1 &&
           static_cast<size_t>(tensor.size(0)) == count;
}

at::Tensor take_numbers(const at::Tensor &numbers, const std::vector<size_t> &indices)
{
    PlainCpu plain;
    std::vector<int64_t> index(indices.begin(), indices.end());
    return at::index_select(numbers, 0, at::tensor(index));
}

} // namespace

void find_members(Members &members, c10::ArrayRef<c10::IValue> inputs)
{
    Paused paused;
    members.clear();
    std::vector<bool> small;
    for (const auto &input : inputs) {
        if (input.isTensor() && !is_small(input.toTensor())) return;
        if (!input.isList()) continue;
        auto items = input.toListRef();
        if (items.empty()) continue; /* an optional state that this optimizer does not keep */
        if (small.empty()) small.assign(items.size(), true);
        if (small.size() != items.size()) return;
        for (size_t i = 0; i < items.size(); i++)
            if (items[i].isTensor() && small[i]) small[i] = is_small(items[i].toTensor());
    }
    members.count = small.size();
    for (size_t i = 0; i < small.size(); i++)
        (small[i] ? members.small : members.others).push_back(i);
}

std::vector<c10::IValue> take_small(c10::ArrayRef<c10::IValue> values, const Members &members)
{
    std::vector<c10::IValue> taken;
    for (const auto &value : values) {
        if (is_list_of(members, value))
            taken.push_back(take(value, members.small));
        else if (holds_numbers(value, members.count))
            taken.emplace_back(take_numbers(value.toTensor(), members.small));
        else
            taken.push_back(value);
    }
    return taken;
}

std::vector<c10::IValue> take_others(c10::ArrayRef<c10::IValue> values, const Members &members)
{
    std::vector<c10::IValue> taken;
    for (const auto &value : values)
        taken.push_back(is_list_of(members, value) ? take(value, members.others) : c10::IValue());
    return taken;
}

} // namespace phantora
