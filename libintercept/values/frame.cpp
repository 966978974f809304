/* frame.cpp - examines an operator's arguments when it starts. See frame.h. */
#include "values/frame.h"

#include <cstring>

#include "values/capture.h"
#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

constexpr size_t kShapes = 16; /* how many tensors are described to the estimators */

/* Long rows of bytes count as small only if they hold something: byte views of large models'
 * buffers do not. The same holds for large integers that nothing has computed. */
bool worth_running(const at::Tensor &tensor, bool written, bool captured)
{
    Size size = size_of(tensor);
    if (size != Size::kSmall || written || !on_device(tensor)) return size == Size::kSmall;
    size_t bytes = span_bytes(tensor);
    if (captured) return bytes <= kSmallBytes; /* its contents at launch are not known yet */
    if (bytes <= kSmallBytes || !host.is_clean(address(tensor), bytes)) return true;
    return (tensor.dim() != 1 || tensor.scalar_type() != at::kByte) &&
           !host.any_undefined(address(tensor), bytes);
}

/* Calls visit(address, bytes) for every device tensor that `op` changes. The old contents of out=
 * arguments do not matter. */
template <class Visit>
void each_changed(const Operator &op, c10::ArrayRef<c10::IValue> inputs, Visit visit)
{
    if (!op.any_written) return;
    for (size_t i = 0; i < op.arguments; i++) {
        if (!op.written[i] || op.out[i]) continue;
        each_tensor(inputs[i], [&](const at::Tensor &tensor) {
            if (on_device(tensor)) visit(static_cast<char *>(address(tensor)), span_bytes(tensor));
        });
    }
}

void prepare_now(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    const Operator &op = *frame.op;
    for (size_t i = 0; i < inputs.size(); i++) settle(inputs[i], op.written[i], true);
    Paused paused;
    frame.inputs.assign(inputs.begin(), inputs.end());
    frame.undefined = reads_undefined(op, inputs);
    if (op.random) frame.generator = stand_in_generator(op, inputs);
    each_changed(op, inputs, [&](char *where, size_t bytes) {
        frame.saved.push_back({where, std::vector<char>(where, where + bytes)});
    });
}

/* A captured operator's arguments are saved at each launch, when the graph reaches it. */
void prepare_captured(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    const Operator &op = *frame.op;
    frame.inputs.assign(inputs.begin(), inputs.end());
    if (!op.any_written) return;
    frame.at_launch = std::make_shared<std::vector<Saved>>();
    each_changed(op, inputs, [&](char *where, size_t bytes) {
        frame.at_launch->push_back({where, std::vector<char>(bytes)});
    });
    at_launch([kept = frame.at_launch] {
        for (auto &saved : *kept) {
            if (saved.bytes.empty()) continue;
            host.before_read(saved.address, saved.bytes.size());
            std::memcpy(saved.bytes.data(), saved.address, saved.bytes.size());
        }
    });
}

} // namespace

void Frame::reset()
{
    runnable = countable = chosen = undefined = captured = inner_wrote = false;
    members.clear();
    at_launch.reset();
    replay_key.clear();
    inputs.clear(), changed.clear(), outs.clear(), saved.clear(), filled.clear(), dims.clear(),
        ranks.clear();
    generator.reset();
    input_bytes = 0;
}

void Frame::announce() const
{
    host.operator_begin(op->name.c_str(), input_bytes, static_cast<uint32_t>(ranks.size()),
                        dims.data(), ranks.data());
}

static void keep_sizes(Frame &frame, c10::IntArrayRef sizes)
{
    if (frame.ranks.size() == kShapes) return;
    frame.dims.insert(frame.dims.end(), sizes.begin(), sizes.end());
    frame.ranks.push_back(static_cast<uint32_t>(sizes.size()));
}

Scan scan(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    Scan result;
    for (size_t i = 0; i < inputs.size(); i++) {
        const auto &input = inputs[i];
        if (input.isDevice() && input.toDevice().is_cuda()) result.device = true;
        each_tensor(input, [&](const at::Tensor &tensor) {
            if ((result.small || result.countable) && !host.observe_only &&
                !worth_running(tensor, frame.op->written[i], frame.captured)) {
                result.small = false;
                result.countable &=
                    frame.op->counts && !frame.op->written[i] && readable_zeros(tensor);
            }
            if (!on_device(tensor)) return;
            result.device = true;
            auto *impl = tensor.unsafeGetTensorImpl();
            if (impl->has_symbolic_sizes_strides()) return;
            frame.input_bytes += static_cast<uint64_t>(impl->numel()) * impl->itemsize();
            keep_sizes(frame, tensor.sizes());
        });
        if (frame.op->window == static_cast<int>(i) && input.isIntList())
            keep_sizes(frame, input.toIntVector());
    }
    return result;
}

bool reads_undefined(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    for (size_t i = 0; i < inputs.size(); i++)
        if (!op.out[i] && !(op.written[i] && op.overwrites) && any_undefined(inputs[i]))
            return true;
    return false;
}

void prepare(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    if (frame.captured)
        prepare_captured(frame, inputs);
    else
        prepare_now(frame, inputs);
}

} // namespace phantora
