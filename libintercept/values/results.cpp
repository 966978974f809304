/* results.cpp - what an operator leaves behind when it has ended. See results.h. */
#include "values/results.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include "values/capture.h"
#include "values/choose.h"
#include "values/host_api.h"
#include "values/replay.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

bool all_small(c10::ArrayRef<c10::IValue> values)
{
    bool small = true;
    for (const auto &value : values)
        each_tensor(value, [&](const at::Tensor &tensor) {
            small = small && size_of(tensor) == Size::kSmall;
        });
    return small;
}

bool all_indices(c10::ArrayRef<c10::IValue> values)
{
    bool indices = true;
    for (const auto &value : values)
        each_tensor(value, [&](const at::Tensor &tensor) {
            indices = indices && (!tensor.defined() || is_index(tensor));
        });
    return indices;
}

/* What an inner operator has given values, the outer one must leave alone. */
void tell_outer(Frame *outer, const c10::IValue &value)
{
    if (!outer) return;
    outer->inner_wrote = true;
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (on_device(tensor)) outer->filled.push_back(address(tensor));
    });
}

bool is_filled(const Frame &frame, const void *where)
{
    return std::find(frame.filled.begin(), frame.filled.end(), where) != frame.filled.end();
}

/* Whether an argument of an operator that has run was an infinity or a NaN already, or asks for one
 * (a mask of -inf). */
bool had_non_finite(c10::ArrayRef<c10::IValue> inputs, const std::vector<Saved> &before)
{
    bool found = false;
    for (const auto &input : inputs) {
        if (input.isDouble()) found = found || !std::isfinite(input.toDouble());
        if (input.isScalar()) found = found || !std::isfinite(input.toScalar().to<double>());
        each_tensor(input, [&](const at::Tensor &tensor) {
            if (found || !tensor.defined() || size_of(tensor) != Size::kSmall ||
                tensor.numel() == 0)
                return;
            const void *bytes = address(tensor);
            for (const auto &saved : before)
                if (saved.address == bytes) bytes = saved.bytes.data();
            found = non_finite(tensor, bytes);
        });
    }
    return found;
}

/* Runs an operator, whose arguments before it changed them are in `before`, and notes whether its
 * results are a GPU's. `unknown`: an argument holds what nothing computed. The logarithm of such a
 * sum is finite on a GPU: jobs stop when a loss is not. */
void run_and_mark(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                  c10::ArrayRef<c10::IValue> outputs, const std::vector<Saved> &before,
                  bool unknown, const std::optional<at::Generator> &generator)
{
    bool computed = run(op, inputs, outputs, generator);
    auto keep_finite = [&](const c10::IValue &value) {
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (!on_device(tensor) || size_of(tensor) != Size::kSmall || tensor.numel() == 0)
                return;
            if (non_finite(tensor, address(tensor)) && !had_non_finite(inputs, before))
                make_finite(tensor);
        });
    };
    for (size_t i = 0; i < outputs.size(); i++) {
        if (unknown && face.balanced && op.fresh[i]) keep_finite(outputs[i]);
        mark(outputs[i], unknown || !computed);
    }
    for (size_t i = 0; i < op.arguments; i++) {
        if (!op.written[i]) continue;
        if (unknown && face.balanced) keep_finite(inputs[i]);
        mark(inputs[i], unknown || !computed);
    }
}

/* What members share (found_inf) hangs on those that were not run as well. */
void mark_shared(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    for (size_t i = 0; i < op.arguments; i++)
        if (op.written[i] && inputs[i].isTensor()) mark(inputs[i], true);
}

void restore(const std::vector<Saved> &saved)
{
    for (const auto &one : saved) std::memcpy(one.address, one.bytes.data(), one.bytes.size());
}

/* As run_frame, at every launch of the graph. Random numbers then depend on the generator's state,
 * which a launch moves on, and on the operator's place among those of the capture. */
void run_at_launch(const Frame &frame, c10::ArrayRef<c10::IValue> outputs)
{
    static std::atomic<uint64_t> place{0};
    std::vector<c10::IValue> arguments, results;
    for (const auto &input : frame.inputs) arguments.push_back(captured_view(input));
    for (const auto &output : outputs) results.push_back(captured_view(output));
    auto kept = frame.at_launch ? frame.at_launch : std::make_shared<std::vector<Saved>>();
    at_launch([op = frame.op, arguments, results, again = frame.inner_wrote,
               mixed = frame.members.mixed(), kept, number = ++place] {
        for (const auto &input : arguments) settle(input, true);
        for (const auto &output : results) settle(output, true);
        Paused paused;
        if (again) restore(*kept);
        auto generator = op->random ? stand_in_generator(*op, arguments, number) : std::nullopt;
        run_and_mark(*op, arguments, results, *kept, reads_unknown(*op, arguments), generator);
        if (mixed) mark_shared(*op, arguments);
    });
}

void run_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    if (frame.captured) {
        run_at_launch(frame, outputs);
    } else {
        for (const auto &output : outputs) settle(output, true);
        Paused paused;
        if (frame.inner_wrote) restore(frame.saved);
        run_and_mark(*frame.op, frame.inputs, outputs, frame.saved, frame.unknown, frame.generator);
        if (frame.members.mixed()) mark_shared(*frame.op, frame.inputs);
    }
    for (const auto &output : outputs) tell_outer(outer, output);
    for (size_t i = 0; i < frame.op->arguments; i++)
        if (frame.op->written[i]) tell_outer(outer, frame.inputs[i]);
}

void choose_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    Paused paused;
    at::Tensor recorded;
    /* what was computed of known arguments is a GPU's */
    bool wanted = frame.chosen && (!ran || frame.unknown);
    if (!frame.question.empty())
        recorded = recorded_choice(frame.question, *frame.op, outputs, wanted);
    if (!frame.chosen) return;
    if (recorded.defined()) {
        if (!choose(*frame.op, frame.inputs, outputs, ran, recorded)) return;
    } else {
        if (!choose(*frame.op, frame.inputs, outputs, ran)) return;
        face.chosen();
    }
    for (const auto &output : outputs) tell_outer(outer, output);
}

/* Large results lose what small tensors have left in their memory, or what they held before: half
 * of a value is none. */
void forget_large(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kLarge ||
            !face.is_device(address(tensor)))
            return;
        /* what lies in its gaps is not its own */
        if (!tensor.is_non_overlapping_and_dense()) return;
        if (is_filled(frame, address(tensor))) return;
        if (frame.captured) {
            at_launch(
                [where = address(tensor), bytes = tensor.nbytes(), zeroes = frame.op->zeroes] {
                    if (face.forget(where, bytes) && zeroes) face.known(where, bytes);
                });
            /* only the launch will know whether it brought values */
            if (frame.op->copies) frame.filled.push_back(address(tensor));
            return;
        }
        if (!face.forget(address(tensor), tensor.nbytes()))
            frame.filled.push_back(address(tensor));
        else if (frame.op->zeroes)
            face.known(address(tensor), tensor.nbytes());
    });
}

/* What an operator that was not run has changed in place keeps its bytes, but they are not what a
 * GPU's would be. */
void mark_changed(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) == Size::kOpaque) return;
        if (is_filled(frame, address(tensor))) return;
        if (frame.captured)
            at_launch([view = captured_view(tensor), unknown = !frame.op->zeroes] {
                mark(view, unknown);
            });
        else
            mark(tensor, !frame.op->zeroes);
    });
}

void zero_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    auto zero_unless_filled = [&](const c10::IValue &value) {
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (!on_device(tensor) || size_of(tensor) != Size::kSmall || tensor.numel() == 0)
                return;
            const void *where = address(tensor);
            if (is_filled(frame, where)) return;
            if (frame.captured) {
                at_launch([view = captured_view(tensor)] {
                    settle(view);
                    Paused paused;
                    zero(view);
                });
                if (outer) outer->inner_wrote = true;
                return;
            }
            settle(tensor);
            Paused paused;
            zero(tensor);
            if (outer) outer->inner_wrote = true;
        });
    };
    for (const auto &out : frame.outs) zero_unless_filled(out), forget_large(frame, out);
    for (const auto &value : frame.changed) mark_changed(frame, value);
    for (size_t i = 0; i < outputs.size(); i++) {
        if (frame.op->fresh[i])
            zero_unless_filled(outputs[i]);
        else if (!frame.op->keeps && !frame.op->copies)
            mark_changed(frame, outputs[i]);
        if (!frame.op->keeps) forget_large(frame, outputs[i]);
    }
}

/* Of a list operator on small tensors beside large ones. */
void give_members_values(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    Paused paused;
    auto small = take_small(outputs, frame.members);
    /* small arguments can have large results */
    if (!all_small(small)) return zero_frame(frame, outer, outputs);
    run_frame(frame, outer, small);
    zero_frame(frame, outer, take_others(outputs, frame.members));
    /* here, not in the job's time */
    frame.inputs.clear(), frame.changed.clear(), frame.saved.clear();
}

} // namespace

void give_values(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    if (frame.members.mixed()) return give_members_values(frame, outer, outputs);
    bool ran = (frame.runnable || (frame.countable && all_indices(outputs))) && all_small(outputs);
    if (ran)
        run_frame(frame, outer, outputs);
    else
        zero_frame(frame, outer, outputs);
    if (frame.chosen || !frame.question.empty()) choose_frame(frame, outer, outputs, ran);
}

} // namespace phantora
