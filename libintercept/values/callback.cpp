/* callback.cpp - observes every PyTorch operator and runs the small ones on the CPU.
 *
 * Why it exists: device kernels compute nothing here, yet jobs steer by small device values: sizes
 * that ranks exchange, norms, index tensors, routing counts. A RecordFunction callback sees each
 * operator when it starts and when it ends. At the end the outputs exist. If everything is small,
 * the same operator is run on CPU tensors over the same bytes.
 *
 * Operators nest. An inner operator runs at its own end, so that the outer one can read its result
 * back (a count, a maximum). What an in-place outer operator changes is saved at its start and
 * restored before it runs, so that nothing is applied twice. If an operator is not run, its small
 * outputs are zeroed unless an inner operator has filled them.
 *
 * Rule: for an operator on large tensors this costs under a microsecond. Nothing here throws into
 * the job. */
#include <ATen/record_function.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>

#include "values/capture.h"
#include "values/choose.h"
#include "values/host_api.h"
#include "values/frame.h"
#include "values/hollow.h"
#include "values/modules.h"
#include "values/operators.h"
#include "values/replay.h"
#include "values/results.h"
#include "values/run.h"
#include "values/steps.h"
#include "work/values_start.h"
#include "values/tensors.h"
#include "values/trace.h"

namespace phantora
{
namespace
{

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;

struct Stack {
    std::deque<Frame> frames; /* a deque, because frames keep their buffers and their addresses */
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

/* The operator's own kernel would compute a number that the host reads back. This makes the host
 * read that number. If the operands have no values, it is what zeros give, not whatever lies in
 * memory. */
void prepare_read_back(const Operator &op, bool small, c10::ArrayRef<c10::IValue> inputs)
{
    if (!host.scalar_readback) return;
    int64_t number = op.name == "aten::equal" && host.balanced &&
                     inputs[0].toTensor().sizes() == inputs[1].toTensor().sizes();
    bool exact = false;
    if (small) {
        for (const auto &input : inputs) settle(input);
        Paused paused;
        number = number_read_back(op, inputs);
        exact = !reads_undefined(op, inputs);
    }
    /* little-endian: the first bytes are also the narrower integer */
    host.scalar_readback(&number, op.read_back, exact);
    counts.read_back++;
}

/* Collects what an operator that is not run writes to. */
void collect_written(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    const Operator &op = *frame.op;
    if (!op.any_written) return;
    for (size_t i = 0; i < op.arguments; i++) {
        if (op.out[i])
            frame.outs.push_back(inputs[i]);
        else if (op.written[i] && op.returns == 0)
            frame.changed.push_back(inputs[i]);
    }
}

/* The small members of the lists are run, the others are not. Single tensors belong to the small
 * members. The clock is paused throughout because lists are long. */
void prepare_members(Frame &frame, c10::ArrayRef<c10::IValue> inputs)
{
    Paused paused;
    prepare(frame, take_small(inputs, frame.members));
    collect_written(frame, take_others(inputs, frame.members));
}

void started(const at::RecordFunction &function)
{
    Observing observing;
    const Operator *op = find_operator(function);
    if (!op || op->treatment == Treatment::kIgnore) return;
    Frame &frame = stack.push();
    frame.function = &function;
    frame.op = op;
    frame.exceptions = std::uncaught_exceptions();
    if (op->treatment == Treatment::kAllocate) return;
    auto all = function.inputs(); /* a boxed caller passes its whole stack */
    auto inputs = all.slice(all.size() - std::min(all.size(), op->arguments));
    frame.captured = !host.observe_only && capturing();
    Scan seen = inputs.size() == op->arguments ? scan(frame, inputs) : Scan{};
    if (!seen.device) {
        stack.depth--;
        return;
    }
    if (host.record || (host.replay && !frame.captured)) frame.replay_key = replay_key(*op, inputs);
    if (host.observe_only) return frame.announce();
    if (op->choice != Choice::kNone && !frame.captured) {
        for (const auto &input : inputs) settle(input);
        frame.chosen = to_be_chosen(*op, inputs);
    }
    bool can_run =
        op->treatment == Treatment::kRun && (!op->random || op->generator >= 0 || op->substitute);
    if (can_run && !seen.small && op->memberwise) find_members(frame.members, inputs);
    bool mixed = frame.members.mixed();
    frame.runnable =
        can_run && (seen.small || mixed) && !(frame.chosen && op->choice == Choice::kDraw);
    frame.countable = can_run && !seen.small && seen.countable && host.balanced && !frame.captured;
    if (mixed)
        prepare_members(frame, inputs);
    else if (frame.runnable || frame.countable)
        prepare(frame, inputs);
    else if (frame.chosen)
        frame.inputs.assign(inputs.begin(), inputs.end());
    if (!frame.runnable) collect_written(frame, inputs);
    if (op->read_back && !frame.captured)
        prepare_read_back(*op, seen.small || frame.countable, inputs);
    if (op->copies && frame.captured)
        at_launch([] { host.copy_begins(); });
    else if (op->copies)
        host.copy_begins();
    frame.announce();
}

void ended(const at::RecordFunction &function)
{
    Frame *frame = stack.top();
    if (!frame || frame->function != &function) return;
    Observing observing;
    Frame *outer = stack.depth > 1 ? &stack.frames[stack.depth - 2] : nullptr;
    const Operator &op = *frame->op;
    auto all = c10::ArrayRef<c10::IValue>(function.outputs());
    auto outputs = all.slice(all.size() - std::min(all.size(), op.returns));
    bool threw = std::uncaught_exceptions() > frame->exceptions || outputs.size() != op.returns;
    if (op.read_back && host.scalar_readback) host.scalar_readback(nullptr, 0, false);
    if (host.record && !threw && !frame->replay_key.empty())
        record_choice(frame->replay_key, op, outputs);
    if (!host.observe_only && !threw && op.treatment != Treatment::kEnclose)
        give_values(*frame, outer, outputs);
    if (outer)
        outer->filled.insert(outer->filled.end(), frame->filled.begin(), frame->filled.end());
    if (op.treatment != Treatment::kAllocate) {
        host.operator_end();
        if (outer && outer->op->treatment != Treatment::kAllocate) outer->announce();
    }
    /* the job's tensors must not live longer than the job wants */
    frame->inputs.clear(), frame->outs.clear(), frame->changed.clear();
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

/* The steps whose operators are not observed, by PHANTORA_UNOBSERVED. Without observation of some
 * steps, what it costs a job can be measured (docs/environment.md). */
enum class Unobserved { kNone, kOthers, kAll };

Unobserved unobserved()
{
    const char *said = getenv("PHANTORA_UNOBSERVED");
    if (!said) return Unobserved::kNone;
    return strcmp(said, "steps") == 0 ? Unobserved::kOthers : Unobserved::kAll;
}

/* Registers all observers. False when PyTorch refuses one. */
bool observe()
{
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(on_start, on_end)
            .needsInputs(true)
            .needsOutputs(!host.observe_only ||
                          host.record) /* packing outputs costs the job host time */
            .scopes({at::RecordScope::FUNCTION}));
    /* places end before steps do: at the end of a step a rank may wait to be ended */
    return handle != at::INVALID_CALLBACK_HANDLE && start_trace() && start_modules() &&
           start_steps();
}

} // namespace

void observe_other_steps()
{
    static const bool alternates = unobserved() == Unobserved::kOthers;
    static bool observed = true;
    if (!alternates) return;
    observed = !observed;
    if (observed)
        at::reenableCallback(handle);
    else
        at::disableCallback(handle);
}

} // namespace phantora

#define VALUES_EXPORT extern "C" __attribute__((visibility("default")))

/* The version of the torch in this process. Old releases do not have the function. */
extern "C" __attribute__((weak)) uint64_t aoti_torch_abi_version();

/* Starts running small operators in all threads, for the life of the process. Returns a value of
 * start.h. */
VALUES_EXPORT int phantora_values_start(void)
{
    constexpr uint64_t built_for = TORCH_ABI_VERSION; /* 2.9 defines it without parentheses */
    if (aoti_torch_abi_version && aoti_torch_abi_version() != built_for) return VALUES_OTHER_TORCH;
    if (!phantora::find_host_api()) return VALUES_OTHER_INTERCEPTOR;
    if (phantora::unobserved() == phantora::Unobserved::kAll) return VALUES_STARTED;
    /* once: a leader's process holds two interceptors, and each calls this */
    static const bool started = phantora::observe();
    return started ? VALUES_STARTED : VALUES_NO_CALLBACK;
}

/* Takes over the allocation of host tensors, for the life of the process. Does nothing for another
 * torch or another interceptor. */
VALUES_EXPORT void phantora_values_allocate(void)
{
    constexpr uint64_t built_for = TORCH_ABI_VERSION;
    if (aoti_torch_abi_version && aoti_torch_abi_version() != built_for) return;
    if (phantora::find_hollow_api()) phantora::allocate_host_tensors();
}

/* Operators run, small outputs zeroed, failures, counts read back. For tests and measurements. */
VALUES_EXPORT void phantora_values_counts(uint64_t into[4])
{
    into[0] = phantora::counts.ran, into[1] = phantora::counts.zeroed;
    into[2] = phantora::counts.failed, into[3] = phantora::counts.read_back;
}
