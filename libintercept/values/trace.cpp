/* trace.cpp - reports framework operators, collectives and steps to the trace log.
 *
 * Why it exists: a trace without operators shows kernels without their cause. The operators come
 * from a callback of its own, registered only when the process is traced, so that other runs do not
 * pay for it. It covers the same scopes as PyTorch's own profiler, and describes a collective as
 * that profiler does: from thread-local debug information that PyTorch provides while a process
 * group works. */
#include <ATen/record_function.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <atomic>
#include <cstring>
#include <string>

#include "base/protocol.gen.h"
#include "values/allocator.h"
#include "values/observe.h"
#include "values/steps.h"
#include "values/trace.h"

namespace phantora
{
namespace
{

int (*wanted)();
void (*begin)(int kind, const char *name, const char *description);
void (*end)(int ends_step);

/* longer lists are cut: kTruncatLength of torch/csrc/profiler/util.cpp */
constexpr size_t kMostRanks = 30;

template <typename T>
std::string list(const std::vector<T> &values)
{
    std::string text = "[";
    for (size_t i = 0; i < values.size(); i++) {
        if (values.size() > kMostRanks && i == kMostRanks - 1) {
            text += "..., ";
            i = values.size() - 1;
        }
        text += std::to_string(values[i]) + (i + 1 < values.size() ? ", " : "");
    }
    return text + "]";
}

std::string quoted(const std::string &text)
{
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result + "\"";
}

/* JSON members as in Kineto's traces. */
std::string describe(const torch::ParamCommsDebugInfo &info)
{
    return "\"Collective name\": " + quoted(info.getCollectiveName()) +
           ", \"In msg nelems\": " + std::to_string(info.getInMessageNelems()) +
           ", \"Out msg nelems\": " + std::to_string(info.getOutMessageNelems()) +
           ", \"Group size\": " + std::to_string(info.getWorldSize()) +
           ", \"dtype\": " + quoted(c10::toString(info.getDType())) +
           ", \"In split size\": " + quoted(list(info.getInputSplitSizes())) +
           ", \"Out split size\": " + quoted(list(info.getOutputSplitSizes())) +
           ", \"Process Group Name\": " + quoted(info.getProcessGroupName()) +
           ", \"Process Group Description\": " + quoted(info.getProcessGroupDesc()) +
           ", \"Process Group Ranks\": " + quoted(list(info.getGroupRanks()));
}

ph_operator_kind kind_of(at::RecordScope scope)
{
    return scope == at::RecordScope::USER_SCOPE          ? PH_OPERATOR_USER
           : scope == at::RecordScope::BACKWARD_FUNCTION ? PH_OPERATOR_BACKWARD
                                                         : PH_OPERATOR_FUNCTION;
}

std::unique_ptr<at::ObserverContext> on_traced_start(const at::RecordFunction &function)
{
    try {
        const char *name = function.name();
        std::string description;
        if (std::strcmp(name, "record_param_comms") == 0) {
            auto *base = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PARAM_COMMS_INFO);
            if (auto *info = dynamic_cast<const torch::ParamCommsDebugInfo *>(base))
                description = describe(*info);
        }
        begin(kind_of(function.scope()), name, description.empty() ? nullptr : description.c_str());
    } catch (
        const std::exception &) { /* out of memory: the job's own next allocation will report it */
        begin(PH_OPERATOR_FUNCTION, "", nullptr);
    }
    return nullptr;
}

void on_traced_end(const at::RecordFunction &function, at::ObserverContext *)
{
    end(function.scope() == at::RecordScope::USER_SCOPE && is_optimizer(function));
}

/* Changes below this are not logged, those of the peak always. */
constexpr uint64_t kLeastChange = 1 << 20;

/* Whether what the allocator holds on the current device has changed by enough to be logged.
 * `bytes`: allocated, reserved, peak of allocated. */
bool memory_changed(uint32_t *on, uint64_t *bytes)
{
    static std::atomic<uint64_t> allocated, reserved, peak; /* as they were logged last */
    AllocatorBytes found;
    if (!allocator_bytes(&found)) return false;
    *on = found.device;
    bytes[0] = found.allocated;
    bytes[1] = found.reserved;
    bytes[2] = found.peak_allocated;
    uint64_t before = allocated;
    uint64_t change = bytes[0] > before ? bytes[0] - before : before - bytes[0];
    if (change < kLeastChange && bytes[1] == reserved && bytes[2] == peak) return false;
    allocated = bytes[0];
    reserved = bytes[1];
    peak = bytes[2];
    return true;
}

} // namespace

bool start_trace()
{
    auto find = [](auto &pointer, const char *name) {
        pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(dlsym(RTLD_DEFAULT, name));
        return pointer != nullptr;
    };
    if (!find(wanted, "phantora_trace_wanted") || !find(begin, "phantora_trace_operator_begin") ||
        !find(end, "phantora_trace_operator_end"))
        return true;
    if (!wanted()) return true;
    void (*watch_memory)(bool (*)(uint32_t *, uint64_t *));
    if (find(watch_memory, "phantora_trace_memory")) watch_memory(memory_changed);
    return observe_everything(on_traced_start, on_traced_end);
}

} // namespace phantora
