/* replay.cpp - choices of a leader's GPU, recorded and later given to a simulated rank (--values
 * replay).
 *
 * Why it exists: jobs steer by what operators choose by value (Operator::choice). These choices are
 * integers: small enough to record, and everything derived from them is computed.
 * leader/measure/recorded_values.c records the host's own reads. Rule: the replay key depends on
 * the operator and the shapes alone, so that both sides count the same occurrences. */
#include "values/replay.h"

#include <ATen/ops/from_blob.h>

#include "values/capture.h"
#include "values/host_api.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

void append_shape(std::string &text, const at::Tensor &tensor)
{
    text += '[';
    for (int64_t size : tensor.sizes()) text += std::to_string(size) += ',';
    text += ']';
}

/* The result that determines the others: the indices, or what was drawn or counted. */
const at::Tensor &choice_of(const Operator &op, c10::ArrayRef<c10::IValue> outputs)
{
    bool first =
        op.choice == Choice::kDraw || op.choice == Choice::kCount || op.choice == Choice::kAll;
    return outputs[first ? 0 : outputs.size() - 1].toTensor();
}

} // namespace

std::string replay_key(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    if (op.choice == Choice::kNone || !inputs[0].isTensor()) return {};
    const at::Tensor &self = inputs[0].toTensor();
    if (!on_device(self) || !is_plain(self) || self.numel() == 0) return {};
    bool by_values =
        op.choice == Choice::kCount ||
        (op.choice == Choice::kAll ? self.scalar_type() == at::kBool : self.is_floating_point());
    if (!by_values) return {};
    std::string text = op.name + "." + op.overload + " of ";
    append_shape(text, self);
    for (const auto &input : inputs.slice(1))
        if (input.isInt())
            text += " " + std::to_string(input.toInt());
        else if (input.isBool())
            text += input.toBool() ? " yes" : " no";
    return text;
}

void record_choice(const std::string &replay_key, const Operator &op,
                   c10::ArrayRef<c10::IValue> outputs)
{
    const at::Tensor &choice = choice_of(op, outputs);
    if (!on_device(choice) || !is_plain(choice) || choice.numel() == 0 ||
        choice.nbytes() > kIndexBytes)
        return;
    /* A choice with another memory order cannot be copied as it stands. Its occurrence counts, but
     * it has no value. */
    host.record(replay_key.c_str(), address(choice), choice.is_contiguous() ? choice.nbytes() : 0,
                static_cast<int>(choice.scalar_type()), current_stream());
}

at::Tensor recorded_choice(const std::string &replay_key, const Operator &op,
                           c10::ArrayRef<c10::IValue> outputs, bool wanted)
{
    const at::Tensor &choice = choice_of(op, outputs);
    const void *value;
    size_t bytes;
    int dtype;
    if (!on_device(choice) || !is_plain(choice) || choice.numel() == 0 ||
        choice.nbytes() > kIndexBytes)
        return {};
    if (!host.replay(replay_key.c_str(), wanted, &value, &bytes, &dtype)) return {};
    auto type = static_cast<at::ScalarType>(dtype);
    if (bytes != static_cast<size_t>(choice.numel()) * c10::elementSize(type)) return {};
    return at::from_blob(const_cast<void *>(value), choice.sizes(), at::TensorOptions(type))
        .clone();
}

} // namespace phantora
