/* replay.cpp - choices that a leader's GPU made, recorded and told again (--values replay).
 *
 * Why it exists: what an operator chose by values (Operator::choice) is what jobs steer by, and it
 * is integers: small enough to keep, and all that follows from them is computed. The host's own
 * reads are kept beside them (libintercept/leader/values.c). Rule: whether there is a question
 * hangs on the operator and the shapes alone, so that both sides count the same occasions. */
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

/* The result that tells all of it: places, or what was drawn or counted. */
const at::Tensor &choice_of(const Operator &op, c10::ArrayRef<c10::IValue> outputs)
{
    bool first =
        op.choice == Choice::kDraw || op.choice == Choice::kCount || op.choice == Choice::kAll;
    return outputs[first ? 0 : outputs.size() - 1].toTensor();
}

} // namespace

std::string question(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
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

void record_choice(const std::string &question, const Operator &op,
                   c10::ArrayRef<c10::IValue> outputs)
{
    const at::Tensor &choice = choice_of(op, outputs);
    if (!on_device(choice) || !is_plain(choice) || choice.numel() == 0 ||
        choice.nbytes() > kIndexBytes)
        return;
    /* A choice in another order of memory cannot be copied as it stands; it is asked, and has no
     * answer. */
    face.record(question.c_str(), address(choice), choice.is_contiguous() ? choice.nbytes() : 0,
                static_cast<int>(choice.scalar_type()), current_stream());
}

at::Tensor recorded_choice(const std::string &question, const Operator &op,
                           c10::ArrayRef<c10::IValue> outputs, bool wanted)
{
    const at::Tensor &choice = choice_of(op, outputs);
    const void *value;
    size_t bytes;
    int dtype;
    if (!on_device(choice) || !is_plain(choice) || choice.numel() == 0 ||
        choice.nbytes() > kIndexBytes)
        return {};
    if (!face.replay(question.c_str(), wanted, &value, &bytes, &dtype)) return {};
    auto type = static_cast<at::ScalarType>(dtype);
    if (bytes != static_cast<size_t>(choice.numel()) * c10::elementSize(type)) return {};
    return at::from_blob(const_cast<void *>(value), choice.sizes(), at::TensorOptions(type))
        .clone();
}

} // namespace phantora
