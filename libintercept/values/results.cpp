/* results.cpp - gives values to an operator's results when it has ended. See results.h. */
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
    return !any_tensor(values,
                       [](const at::Tensor &tensor) { return size_of(tensor) != Size::kSmall; });
}

bool all_indices(c10::ArrayRef<c10::IValue> values)
{
    return !any_tensor(
        values, [](const at::Tensor &tensor) { return tensor.defined() && !is_index(tensor); });
}

/* The outer operator must not touch what an inner operator has filled. */
void report_filled(Frame *outer, const c10::IValue &value)
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

/* Whether an argument of an operator that has run was already an infinity or a NaN, or asks for one
 * (a mask of -inf). `before` holds the arguments that it changed. */
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

/* Runs an operator and marks whether its results are what a GPU would compute. `before` holds the
 * arguments that it changes; `undefined`: an argument has undefined bytes. Results of undefined
 * arguments are kept finite, because on a GPU they would be (the logarithm of a sum), and jobs stop
 * when a loss is not. */
void run_and_mark(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                  c10::ArrayRef<c10::IValue> outputs, const std::vector<Saved> &before,
                  bool undefined, const std::optional<at::Generator> &generator)
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
        if (undefined && host.balanced && op.fresh[i]) keep_finite(outputs[i]);
        mark(outputs[i], undefined || !computed);
    }
    for (size_t i = 0; i < op.arguments; i++) {
        if (!op.written[i]) continue;
        if (undefined && host.balanced) keep_finite(inputs[i]);
        mark(inputs[i], undefined || !computed);
    }
}

/* What the members share (found_inf) also depends on those that were not run. */
void mark_shared(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    for (size_t i = 0; i < op.arguments; i++)
        if (op.written[i] && inputs[i].isTensor()) mark(inputs[i], true);
}

void restore(const std::vector<Saved> &saved)
{
    for (const auto &one : saved) std::memcpy(one.address, one.bytes.data(), one.bytes.size());
}

/* As run_frame, but at every launch of the graph. Random numbers depend on the generator's state,
 * which each launch advances, and on the operator's index among the captured ones. */
void run_at_launch(const Frame &frame, c10::ArrayRef<c10::IValue> outputs)
{
    static std::atomic<uint64_t> captured_operators{0};
    std::vector<c10::IValue> arguments, results;
    for (const auto &input : frame.inputs) arguments.push_back(captured_view(input));
    for (const auto &output : outputs) results.push_back(captured_view(output));
    auto kept = frame.at_launch ? frame.at_launch : std::make_shared<std::vector<Saved>>();
    at_launch([op = frame.op, arguments, results, again = frame.inner_wrote,
               mixed = frame.members.mixed(), kept, salt = ++captured_operators] {
        for (const auto &input : arguments) settle(input, true);
        for (const auto &output : results) settle(output, true);
        Paused paused;
        if (again) restore(*kept);
        auto generator = op->random ? stand_in_generator(*op, arguments, salt) : std::nullopt;
        run_and_mark(*op, arguments, results, *kept, reads_undefined(*op, arguments), generator);
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
        run_and_mark(*frame.op, frame.inputs, outputs, frame.saved, frame.undefined,
                     frame.generator);
        if (frame.members.mixed()) mark_shared(*frame.op, frame.inputs);
    }
    for (const auto &output : outputs) report_filled(outer, output);
    for (size_t i = 0; i < frame.op->arguments; i++)
        if (frame.op->written[i]) report_filled(outer, frame.inputs[i]);
}

void choose_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    Paused paused;
    at::Tensor recorded;
    /* a result of defined arguments is what a GPU computes */
    bool wanted = frame.chosen && (!ran || frame.undefined);
    if (!frame.replay_key.empty())
        recorded = recorded_choice(frame.replay_key, *frame.op, outputs, wanted);
    if (!frame.chosen) return;
    if (recorded.defined()) {
        if (!choose(*frame.op, frame.inputs, outputs, ran, recorded)) return;
    } else {
        if (!choose(*frame.op, frame.inputs, outputs, ran)) return;
        host.chosen();
    }
    for (const auto &output : outputs) report_filled(outer, output);
}

/* A large result loses the bytes that small tensors left in its memory, and its own old ones: a
 * partly defined value is no value. */
void discard_large(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kLarge ||
            !host.is_device(address(tensor)))
            return;
        /* the gaps belong to other tensors */
        if (!tensor.is_non_overlapping_and_dense()) return;
        if (is_filled(frame, address(tensor))) return;
        if (frame.captured) {
            at_launch(
                [where = address(tensor), bytes = tensor.nbytes(), zeroes = frame.op->zeroes] {
                    if (host.discard(where, bytes) && zeroes) host.mark_defined(where, bytes);
                });
            /* whether the copy brings values is known only at launch */
            if (frame.op->copies) frame.filled.push_back(address(tensor));
            return;
        }
        if (!host.discard(address(tensor), tensor.nbytes()))
            frame.filled.push_back(address(tensor));
        else if (frame.op->zeroes)
            host.mark_defined(address(tensor), tensor.nbytes());
    });
}

/* A result that an operator changed in place without being run keeps its bytes, but they are not a
 * GPU's. */
void mark_changed(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) == Size::kOpaque) return;
        if (is_filled(frame, address(tensor))) return;
        if (frame.captured)
            at_launch([view = captured_view(tensor), undefined = !frame.op->zeroes] {
                mark(view, undefined);
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
    for (const auto &out : frame.outs) zero_unless_filled(out), discard_large(frame, out);
    for (const auto &value : frame.changed) mark_changed(frame, value);
    for (size_t i = 0; i < outputs.size(); i++) {
        if (frame.op->fresh[i])
            zero_unless_filled(outputs[i]);
        else if (!frame.op->keeps && !frame.op->copies)
            mark_changed(frame, outputs[i]);
        if (!frame.op->keeps) discard_large(frame, outputs[i]);
    }
}

/* For a list operator with both small and large members. */
void give_members_values(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    Paused paused;
    auto small = take_small(outputs, frame.members);
    /* small arguments can have large results */
    if (!all_small(small)) return zero_frame(frame, outer, outputs);
    run_frame(frame, outer, small);
    zero_frame(frame, outer, take_others(outputs, frame.members));
    /* freed here, within the pause, not in the job's time */
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
    if (frame.chosen || !frame.replay_key.empty()) choose_frame(frame, outer, outputs, ran);
}

} // namespace phantora
