/* hollow.cpp - operators on hollow tensors: watched by a callback of their own, and skipped where
 * skip.cpp replaces the CPU's kernel. See hollow.h. */
#include "values/hollow.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <vector>

#include "values/host_api.h"
#include "values/operators.h"
#include "values/skip.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

/* An operator between its start and its end. */
struct Watched {
    const at::RecordFunction *function;
    const Operator *op;
    bool device; /* an argument is in device memory */
    bool reads, outermost;
    std::vector<c10::IValue> changed; /* of an operator without results: what it writes to */
};
thread_local std::vector<Watched> watched;
thread_local int readers; /* operators under way that read a hollow tensor */

c10::ArrayRef<c10::IValue> last(c10::ArrayRef<c10::IValue> all, size_t count)
{
    return all.slice(all.size() - std::min(all.size(), count));
}

bool is_hollow(const at::Tensor &tensor)
{
    return tensor.defined() && tensor.is_cpu() && is_plain(tensor) && tensor.numel() &&
           host.is_block(address(tensor)) && host.any_hollow(address(tensor), span_bytes(tensor));
}

bool reads_hollow(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    for (size_t i = 0; i < inputs.size(); i++)
        if (!op.out[i] && !(op.written[i] && op.overwrites) && any_tensor(inputs[i], is_hollow))
            return true;
    return false;
}

void watch_begins(const at::RecordFunction &function)
{
    const Operator *op = find_operator(function);
    if (!op || op->treatment == Treatment::kIgnore || op->treatment == Treatment::kAllocate) return;
    auto inputs = last(function.inputs(), op->arguments);
    if (inputs.size() != op->arguments) return;
    bool device = any_tensor(inputs, on_device),
         reads = !device && !op->keeps && reads_hollow(*op, inputs);
    watched.push_back({&function, op, device, reads, reads && !readers, {}});
    readers += reads;
    if (op->returns || device) return;
    for (size_t i = 0; i < inputs.size(); i++)
        if (op->written[i]) watched.back().changed.push_back(inputs[i]);
}

/* What an operator that ran has written to: a large tensor of floats is forgotten. True when the
 * job now has, elsewhere, a result of what hollow tensors hold. */
bool settle_result(const Watched &frame, const at::Tensor &tensor)
{
    if (!tensor.defined() || !tensor.is_cpu() || !is_plain(tensor) || !tensor.numel()) return false;
    if (can_be_hollow(tensor)) {
        if (!frame.op->replaced && host.hollows()) make_hollow(tensor);
        return false;
    }
    bool within = host.is_block(address(tensor));
    if (within && !frame.reads) host.written(address(tensor), span_bytes(tensor));
    return frame.reads && !(within && tensor.is_floating_point());
}

/* Arguments are gone by now. */
void watch_ends(const at::RecordFunction &function)
{
    if (watched.empty() || watched.back().function != &function) return;
    Watched frame = std::move(watched.back());
    watched.pop_back();
    readers -= frame.reads;
    if (frame.device) return; /* a copy; the interceptor knows which of its bytes are hollow */
    bool told = frame.reads && frame.op->returns == 0 && frame.changed.empty();
    auto settle_each = [&](const c10::IValue &value) {
        told = told || (frame.reads && !value.isTensor() && !value.isList());
        each_tensor(value,
                    [&](const at::Tensor &tensor) { told = settle_result(frame, tensor) || told; });
    };
    for (const auto &output : last(function.outputs(), frame.op->returns)) settle_each(output);
    for (const auto &value : frame.changed) {
        bool before = told;
        settle_each(value);
        /* the members of a list do not depend on each other */
        if (frame.op->memberwise && value.isList()) told = before;
    }
    if (told && frame.outermost) host.read_hollow();
}

std::unique_ptr<at::ObserverContext> hollow_start(const at::RecordFunction &function)
{
    Observing observing(false);
    try {
        watch_begins(function);
    } catch (const std::exception &) { /* the job's operator must go on */
    }
    return nullptr;
}

void hollow_end(const at::RecordFunction &function, at::ObserverContext *)
{
    Observing observing(false);
    try {
        watch_ends(function);
    } catch (const std::exception &) {
    }
}

} // namespace

void hollow_host_tensors()
{
    replace_kernels();
    at::addGlobalCallback(at::RecordFunctionCallback(hollow_start, hollow_end)
                              .needsInputs(true)
                              .needsOutputs(true)
                              .scopes({at::RecordScope::FUNCTION}));
}

} // namespace phantora
