/* callback.cpp - PyTorch tells of every operator; the small ones are run for real.
 *
 * Why it exists: device kernels do nothing here, yet jobs steer by small device values: sizes that ranks exchange, norms, index
 * tensors, routing counts. A RecordFunction callback sees each operator when it starts and when it ends. At the end the
 * outputs exist, and if everything is small, the same operator is run on CPU tensors over the same bytes.
 *
 * Operators nest. An inner one runs at its own end, so that what the outer one reads back in between (a count, a maximum) is
 * right; what an in-place outer one changes is saved at its start and restored before it runs, so that nothing is applied
 * twice. An operator that is not run has its small outputs zeroed, unless an inner one has filled them.
 *
 * Rule: for an operator on large tensors this costs under a microsecond; nothing here throws into the job. */
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>

#include "capture.h"
#include "choose.h"
#include "face.h"
#include "operators.h"
#include "replay.h"
#include "run.h"
#include "start.h"
#include "tensors.h"
#include "trace.h"
#include "weigh.h"

namespace phantora {

Face face;

bool find_face()
{
    auto find = [](auto &function, const char *name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
        return function != nullptr;
    };
    face.observe_only = dlsym(RTLD_DEFAULT, "phantora_values_observe_only") != nullptr;
    int (*records)() = nullptr;
    if (face.observe_only && find(records, "phantora_values_records") && records()) find(face.record, "phantora_values_record");
    if (face.observe_only)
        return find(face.operator_begin, "phantora_operator_begin") && find(face.operator_end, "phantora_operator_end") &&
               find(face.recording, "phantora_values_recording") && find(face.job_ns, "phantora_values_job_ns") &&
               find(face.weighed, "phantora_values_weighed") && find(face.observed, "phantora_values_observed");
    find(face.plant, "phantora_values_plant");
    const char *(*policy)() = nullptr;
    find(policy, "phantora_values_policy");
    std::string named = policy && policy() ? policy() : "";
    face.balanced = named == "balanced" || named == "replay";
    if (named == "replay") find(face.replay, "phantora_values_replay");
    find(face.failed, "phantora_values_failed");
    if (!find(face.capture_append, "phantora_capture_append") || !find(face.capture_check, "phantora_capture_check") ||
        !find(face.captures, "phantora_captures"))
        face.captures = nullptr;
    return find(face.is_device, "phantora_is_device") && find(face.pause, "phantora_values_pause") &&
           find(face.resume, "phantora_values_resume") && find(face.before_read, "phantora_values_before_read") &&
           find(face.written, "phantora_values_written") && find(face.copy_begins, "phantora_values_copy_begins") &&
           find(face.absent, "phantora_values_absent") && find(face.unknown, "phantora_values_unknown") &&
           find(face.known, "phantora_values_known") && find(face.any_unknown, "phantora_values_any_unknown") &&
           find(face.chosen, "phantora_values_chosen") &&
           find(face.forget, "phantora_values_forget") && find(face.operator_begin, "phantora_operator_begin") && find(face.operator_end, "phantora_operator_end");
}

namespace {

struct Saved {
    void *address;
    std::vector<char> bytes;
};

/* One operator between its start and its end. */
struct Frame {
    const at::RecordFunction *function = nullptr;
    const Operator *op = nullptr;
    int exceptions = 0;
    bool runnable = false;                 /* every argument is small */
    bool countable = false;                /* it would be, but for large floats that read as zero: runs if it gives integers */
    bool chosen = false;                   /* the policy decides its results */
    std::string question;                  /* what a GPU is asked by it (replay.h), where that is recorded or replayed */
    bool unknown = false;                  /* of a runnable operator: an argument holds what nothing computed */
    bool captured = false;                 /* into a CUDA graph: nothing is read or computed now (capture.h) */
    std::shared_ptr<std::vector<Saved>> at_launch; /* `saved` of a captured one, filled at each launch */
    bool inner_wrote = false;
    std::vector<c10::IValue> inputs;       /* of an operator that may be run or whose results are chosen */
    std::vector<c10::IValue> changed;      /* of an operator that gives nothing back: what it writes to */
    std::vector<c10::IValue> outs;         /* its out= arguments */
    std::vector<Saved> saved;              /* of a runnable operator: what it may change */
    std::vector<const void *> filled;      /* tensors that inner operators have given values */
    std::optional<at::Generator> generator;
    uint64_t input_bytes = 0;
    std::vector<int64_t> dims;
    std::vector<uint32_t> ranks;

    void reset()
    {
        runnable = countable = chosen = unknown = captured = inner_wrote = false;
        at_launch.reset();
        question.clear();
        inputs.clear(), changed.clear(), outs.clear(), saved.clear(), filled.clear(), dims.clear(), ranks.clear();
        generator.reset();
        input_bytes = 0;
    }
    void announce() const
    {
        face.operator_begin(op->name.c_str(), input_bytes, static_cast<uint32_t>(ranks.size()), dims.data(), ranks.data());
    }
};

struct Stack {
    std::deque<Frame> frames; /* a deque: frames keep their buffers and their addresses */
    size_t depth = 0;

    Frame &push()
    {
        if (depth == frames.size()) frames.emplace_back();
        frames[depth].reset();
        return frames[depth++];
    }
    Frame *top() { return depth ? &frames[depth - 1] : nullptr; }
};
thread_local Stack stack;

constexpr size_t kShapes = 16; /* as many tensors as are described to the estimators */

/* Simulator's time, not the job's. */
struct Paused {
    Paused() { face.pause(); }
    ~Paused() { face.resume(); }
};

/* `touched`: to be read by a kernel that may write to it all the same, as batch norms do to what their schemas call inputs. */
void settle(const c10::IValue &value, bool written = false, bool touched = false)
{
    each_tensor(value, [=](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kSmall) return;
        size_t bytes = span_bytes(tensor);
        if (!bytes) return;
        face.before_read(address(tensor), bytes);
        if (written || (touched && bytes <= kSmallBytes)) face.written(address(tensor), bytes);
    });
}

/* Rows of bytes longer than other small tensors only count as small if they hold something: buffers of large models that are
 * looked at as bytes do not. Nor do large integers that nothing has computed. */
bool worth_running(const at::Tensor &tensor, bool written, bool captured)
{
    Size size = size_of(tensor);
    if (size != Size::kSmall || written || !on_device(tensor)) return size == Size::kSmall;
    size_t bytes = span_bytes(tensor);
    if (captured) return bytes <= kSmallBytes; /* what it will hold is not known */
    if (bytes <= kSmallBytes || !face.absent(address(tensor), bytes)) return true;
    return (tensor.dim() != 1 || tensor.scalar_type() != at::kByte) && !face.any_unknown(address(tensor), bytes);
}

/* What a look at the arguments tells. */
struct Scan {
    bool device = false, small = true, countable = true;
};

Scan scan(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    Scan result;
    for (size_t i = 0; i < inputs.size(); i++) {
        const auto &input = inputs[i];
        if (input.isDevice() && input.toDevice().is_cuda()) result.device = true;
        each_tensor(input, [&](const at::Tensor &tensor) {
            if ((result.small || result.countable) && !face.observe_only && !worth_running(tensor, frame.op->written[i], frame.captured)) {
                result.small = false;
                result.countable &= frame.op->counts && !frame.op->written[i] && readable_zeros(tensor);
            }
            if (!on_device(tensor)) return;
            result.device = true;
            auto *impl = tensor.unsafeGetTensorImpl();
            if (impl->has_symbolic_sizes_strides()) return;
            frame.input_bytes += static_cast<uint64_t>(impl->numel()) * impl->itemsize();
            if (frame.ranks.size() == kShapes) return;
            auto sizes = tensor.sizes();
            frame.dims.insert(frame.dims.end(), sizes.begin(), sizes.end());
            frame.ranks.push_back(static_cast<uint32_t>(sizes.size()));
        });
    }
    return result;
}

bool reads_unknown(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    for (size_t i = 0; i < inputs.size(); i++)
        if (!op.out[i] && !(op.written[i] && op.overwrites) && any_unknown(inputs[i])) return true;
    return false;
}

/* Keeps what the end needs of a runnable operator. */
void prepare(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    const Operator &op = *frame.op;
    for (size_t i = 0; i < inputs.size(); i++) settle(inputs[i], op.written[i], true);
    Paused paused;
    frame.inputs.assign(inputs.begin(), inputs.end());
    frame.unknown = reads_unknown(op, inputs);
    if (op.random) frame.generator = stand_in_generator(op, inputs);
    if (!op.any_written) return;
    for (size_t i = 0; i < op.arguments; i++) {
        if (!op.written[i] || op.out[i]) continue;
        each_tensor(inputs[i], [&](const at::Tensor &tensor) {
            if (!on_device(tensor)) return;
            auto *bytes = static_cast<const char *>(address(tensor));
            frame.saved.push_back({address(tensor), std::vector<char>(bytes, bytes + span_bytes(tensor))});
        });
    }
}

/* The same for an operator that is captured: what it changes is saved when the graph has come so far. */
void prepare_captured(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    const Operator &op = *frame.op;
    frame.inputs.assign(inputs.begin(), inputs.end());
    if (!op.any_written) return;
    frame.at_launch = std::make_shared<std::vector<Saved>>();
    for (size_t i = 0; i < op.arguments; i++) {
        if (!op.written[i] || op.out[i]) continue;
        each_tensor(inputs[i], [&](const at::Tensor &tensor) {
            if (on_device(tensor)) frame.at_launch->push_back({address(tensor), std::vector<char>(span_bytes(tensor))});
        });
    }
    at_launch([kept = frame.at_launch] {
        for (auto &saved : *kept) {
            if (saved.bytes.empty()) continue;
            face.before_read(saved.address, saved.bytes.size());
            std::memcpy(saved.bytes.data(), saved.address, saved.bytes.size());
        }
    });
}

/* The host will read back what the operator's own kernel would have computed: make it read that. If the operands have no
 * values, what zeros give, rather than what happens to lie in memory. */
void plant_number(const Operator &op, bool small, c10::ArrayRef<c10::IValue> inputs)
{
    if (!face.plant) return;
    int64_t number = op.name == "aten::equal" && face.balanced && inputs[0].toTensor().sizes() == inputs[1].toTensor().sizes();
    bool exact = false;
    if (small) {
        for (const auto &input : inputs) settle(input);
        Paused paused;
        number = number_read_back(op, inputs);
        exact = !reads_unknown(op, inputs);
    }
    face.plant(&number, op.read_back, exact); /* little-endian: the first bytes are the narrower integer */
    counts.planted++;
}

void started(const at::RecordFunction &function)
{
    std::optional<Watched> ours;
    if (face.observe_only && face.recording()) ours.emplace(weight_ns());
    const Operator *op = find_operator(function);
    if (!op || op->treatment == Treatment::kIgnore) return;
    Frame &frame = stack.push();
    frame.function = &function;
    frame.op = op;
    frame.exceptions = std::uncaught_exceptions();
    if (op->treatment == Treatment::kAllocate) return;
    auto all = function.inputs(); /* a boxed caller passes its whole stack */
    auto inputs = all.slice(all.size() - std::min(all.size(), op->arguments));
    frame.captured = !face.observe_only && capturing();
    Scan seen = inputs.size() == op->arguments ? scan(frame, inputs) : Scan{};
    if (!seen.device) {
        stack.depth--;
        return;
    }
    if (face.record || (face.replay && !frame.captured)) frame.question = question(*op, inputs);
    if (face.observe_only) return frame.announce();
    if (op->choice != Choice::kNone && !frame.captured) {
        for (const auto &input : inputs) settle(input);
        frame.chosen = to_be_chosen(*op, inputs);
    }
    bool can_run = op->treatment == Treatment::kRun && (!op->random || op->generator >= 0 || op->substitute);
    frame.runnable = can_run && seen.small && !(frame.chosen && op->choice == Choice::kDraw);
    frame.countable = can_run && !seen.small && seen.countable && face.balanced && !frame.captured;
    if (frame.runnable && frame.captured) prepare_captured(frame, inputs);
    else if (frame.runnable || frame.countable) prepare(frame, inputs);
    else if (frame.chosen) frame.inputs.assign(inputs.begin(), inputs.end());
    if (!frame.runnable && op->any_written) {
        for (size_t i = 0; i < op->arguments; i++) {
            if (op->out[i]) frame.outs.push_back(inputs[i]);
            else if (op->written[i] && op->returns == 0) frame.changed.push_back(inputs[i]);
        }
    }
    if (op->read_back && !frame.captured) plant_number(*op, seen.small || frame.countable, inputs);
    if (op->copies && frame.captured) at_launch([] { face.copy_begins(); });
    else if (op->copies) face.copy_begins();
    frame.announce();
}

bool all_small(c10::ArrayRef<c10::IValue> values)
{
    bool small = true;
    for (const auto &value : values)
        each_tensor(value, [&](const at::Tensor &tensor) { small = small && size_of(tensor) == Size::kSmall; });
    return small;
}

bool all_indices(c10::ArrayRef<c10::IValue> values)
{
    bool indices = true;
    for (const auto &value : values)
        each_tensor(value, [&](const at::Tensor &tensor) { indices = indices && (!tensor.defined() || is_index(tensor)); });
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

/* Whether an argument of an operator that has run was an infinity or a NaN already, or asks for one (a mask of -inf). */
bool had_non_finite(c10::ArrayRef<c10::IValue> inputs, const std::vector<Saved> &before)
{
    bool found = false;
    for (const auto &input : inputs) {
        if (input.isDouble()) found = found || !std::isfinite(input.toDouble());
        if (input.isScalar()) found = found || !std::isfinite(input.toScalar().to<double>());
        each_tensor(input, [&](const at::Tensor &tensor) {
            if (found || !tensor.defined() || size_of(tensor) != Size::kSmall || tensor.numel() == 0) return;
            const void *bytes = address(tensor);
            for (const auto &saved : before)
                if (saved.address == bytes) bytes = saved.bytes.data();
            found = non_finite(tensor, bytes);
        });
    }
    return found;
}

/* Runs an operator, whose arguments before it changed them are in `before`, and notes whether its results are a GPU's. `unknown`:
 * an argument holds what nothing computed. The logarithm of such a sum is finite on a GPU: jobs stop when a loss is not. */
void run_and_mark(const Operator &op, c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs,
                  const std::vector<Saved> &before, bool unknown, const std::optional<at::Generator> &generator)
{
    bool computed = run(op, inputs, outputs, generator);
    auto keep_finite = [&](const c10::IValue &value) {
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (!on_device(tensor) || size_of(tensor) != Size::kSmall || tensor.numel() == 0) return;
            if (non_finite(tensor, address(tensor)) && !had_non_finite(inputs, before)) make_finite(tensor);
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

void restore(const std::vector<Saved> &saved)
{
    for (const auto &one : saved) std::memcpy(one.address, one.bytes.data(), one.bytes.size());
}

/* As run_frame, at every launch of the graph. Random numbers then depend on the generator's state, which a launch moves on, and on
 * the operator's place among those of the capture. */
void run_at_launch(const Frame &frame, c10::ArrayRef<c10::IValue> outputs)
{
    static std::atomic<uint64_t> place{0};
    std::vector<c10::IValue> arguments, results;
    for (const auto &input : frame.inputs) arguments.push_back(captured_view(input));
    for (const auto &output : outputs) results.push_back(captured_view(output));
    auto kept = frame.at_launch ? frame.at_launch : std::make_shared<std::vector<Saved>>();
    at_launch([op = frame.op, arguments, results, again = frame.inner_wrote, kept, number = ++place] {
        for (const auto &input : arguments) settle(input, true);
        for (const auto &output : results) settle(output, true);
        Paused paused;
        if (again) restore(*kept);
        auto generator = op->random ? stand_in_generator(*op, arguments, number) : std::nullopt;
        run_and_mark(*op, arguments, results, *kept, reads_unknown(*op, arguments), generator);
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
    }
    for (const auto &output : outputs) tell_outer(outer, output);
    for (size_t i = 0; i < frame.op->arguments; i++)
        if (frame.op->written[i]) tell_outer(outer, frame.inputs[i]);
}

void choose_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    Paused paused;
    at::Tensor recorded;
    bool wanted = frame.chosen && (!ran || frame.unknown); /* what was computed of known arguments is a GPU's */
    if (!frame.question.empty()) recorded = recorded_choice(frame.question, *frame.op, outputs, wanted);
    if (!frame.chosen) return;
    if (recorded.defined()) {
        if (!choose(*frame.op, frame.inputs, outputs, ran, recorded)) return;
    } else {
        if (!choose(*frame.op, frame.inputs, outputs, ran)) return;
        face.chosen();
    }
    for (const auto &output : outputs) tell_outer(outer, output);
}

/* Large results lose what small tensors have left in their memory, or what they held before: half of a value is none. */
void forget_large(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kLarge || !face.is_device(address(tensor))) return;
        if (!tensor.is_non_overlapping_and_dense()) return; /* what lies in its gaps is not its own */
        if (std::find(frame.filled.begin(), frame.filled.end(), address(tensor)) != frame.filled.end()) return;
        if (frame.captured) {
            at_launch([where = address(tensor), bytes = tensor.nbytes(), zeroes = frame.op->zeroes] {
                if (face.forget(where, bytes) && zeroes) face.known(where, bytes);
            });
            if (frame.op->copies) frame.filled.push_back(address(tensor)); /* only the launch will know whether it brought values */
            return;
        }
        if (!face.forget(address(tensor), tensor.nbytes())) frame.filled.push_back(address(tensor));
        else if (frame.op->zeroes) face.known(address(tensor), tensor.nbytes());
    });
}

/* What an operator that was not run has changed in place keeps its bytes, but they are not what a GPU's would be. */
void mark_changed(Frame &frame, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) == Size::kOpaque) return;
        if (std::find(frame.filled.begin(), frame.filled.end(), address(tensor)) != frame.filled.end()) return;
        if (frame.captured) at_launch([view = captured_view(tensor), unknown = !frame.op->zeroes] { mark(view, unknown); });
        else mark(tensor, !frame.op->zeroes);
    });
}

void zero_frame(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs)
{
    auto zero_unless_filled = [&](const c10::IValue &value) {
        each_tensor(value, [&](const at::Tensor &tensor) {
            if (!on_device(tensor) || size_of(tensor) != Size::kSmall || tensor.numel() == 0) return;
            const void *where = address(tensor);
            if (std::find(frame.filled.begin(), frame.filled.end(), where) != frame.filled.end()) return;
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
        if (frame.op->fresh[i]) zero_unless_filled(outputs[i]);
        else if (!frame.op->keeps && !frame.op->copies) mark_changed(frame, outputs[i]);
        if (!frame.op->keeps) forget_large(frame, outputs[i]);
    }
}

void ended(const at::RecordFunction &function)
{
    Frame *frame = stack.top();
    if (!frame || frame->function != &function) return;
    std::optional<Watched> ours;
    if (face.observe_only && face.recording()) ours.emplace(0);
    Frame *outer = stack.depth > 1 ? &stack.frames[stack.depth - 2] : nullptr;
    const Operator &op = *frame->op;
    auto all = c10::ArrayRef<c10::IValue>(function.outputs());
    auto outputs = all.slice(all.size() - std::min(all.size(), op.returns));
    bool threw = std::uncaught_exceptions() > frame->exceptions || outputs.size() != op.returns;
    if (op.read_back && face.plant) face.plant(nullptr, 0, false);
    if (face.record && !threw && !frame->question.empty()) record_choice(frame->question, op, outputs);
    if (!face.observe_only && !threw && op.treatment != Treatment::kEnclose) {
        bool ran = (frame->runnable || (frame->countable && all_indices(outputs))) && all_small(outputs);
        if (ran) run_frame(*frame, outer, outputs);
        else zero_frame(*frame, outer, outputs);
        if (frame->chosen || !frame->question.empty()) choose_frame(*frame, outer, outputs, ran);
    }
    if (outer) outer->filled.insert(outer->filled.end(), frame->filled.begin(), frame->filled.end());
    if (op.treatment != Treatment::kAllocate) {
        face.operator_end();
        if (outer && outer->op->treatment != Treatment::kAllocate) outer->announce();
    }
    frame->inputs.clear(), frame->outs.clear(), frame->changed.clear(); /* the job's tensors must not live longer than it wants */
    frame->generator.reset();
    frame->at_launch.reset();
    stack.depth--;
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &function)
{
    try {
        started(function);
    } catch (const std::exception &) {
        counts.failed++;
    }
    return nullptr;
}

void on_end(const at::RecordFunction &function, at::ObserverContext *)
{
    try {
        ended(function);
    } catch (const std::exception &) {
        counts.failed++;
        if (stack.top() && stack.top()->function == &function) stack.depth--;
    }
}

}  // namespace
}  // namespace phantora

#define VALUES_EXPORT extern "C" __attribute__((visibility("default")))

/* The version of the torch of this process; absent from old ones. */
extern "C" __attribute__((weak)) uint64_t aoti_torch_abi_version();

/* Starts running small operators, in all threads, for the life of the process; an answer of start.h. */
VALUES_EXPORT int phantora_values_start(void)
{
    if (aoti_torch_abi_version && aoti_torch_abi_version() != TORCH_ABI_VERSION) return VALUES_OTHER_TORCH;
    if (!phantora::find_face()) return VALUES_OTHER_INTERCEPTOR;
    static auto handle = at::addGlobalCallback(at::RecordFunctionCallback(phantora::on_start, phantora::on_end)
                                                   .needsInputs(true)
                                                   .needsOutputs(!phantora::face.observe_only || phantora::face.record) /* packing them costs the job host time */
                                                   .scopes({at::RecordScope::FUNCTION}));
    return handle == at::INVALID_CALLBACK_HANDLE || !phantora::start_trace() ? VALUES_NO_CALLBACK : VALUES_STARTED;
}

/* Operators run, small outputs zeroed, failures, counts planted: for tests and measurements. */
VALUES_EXPORT void phantora_values_counts(uint64_t into[4])
{
    into[0] = phantora::counts.ran, into[1] = phantora::counts.zeroed;
    into[2] = phantora::counts.failed, into[3] = phantora::counts.planted;
}
