/* steps.cpp - says when an optimizer has stepped, and the allocator's peaks then.
 *
 * Why it exists: the report states the time of a training step, which no call of CUDA marks.
 * PyTorch marks it with a range of its own. The callback is for such ranges alone. A
 * step has a few hundred of them at most, and the callback for operators is not called for them.
 * The peaks of a process that is killed later are those of its last step.
 *
 * Rules: an optimizer that calls others (a container of them) is one mark. One that steps within
 * the backward pass, parameter by parameter, ends no step. */
#include "values/steps.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "values/allocator.h"
#include "values/host_api.h"
#include "values/modules.h"

namespace phantora
{
namespace
{

thread_local int optimizers = 0; /* how many enclose this point */

std::unique_ptr<at::ObserverContext> on_range_start(const at::RecordFunction &function)
{
    if (is_optimizer(function)) optimizers++;
    return nullptr;
}

void on_range_end(const at::RecordFunction &function, at::ObserverContext *)
{
    if (!is_optimizer(function) || optimizers == 0 || --optimizers > 0) return;
    if (torch::autograd::get_current_graph_task_id() >= 0) return;
    host.pause();
    if (memory_watched()) host.memory_settle();
    AllocatorBytes bytes;
    if (host.report_peaks && allocator_bytes(&bytes))
        host.report_peaks(bytes.peak_allocated, bytes.peak_reserved);
    host.step_ended();
    observe_other_steps();
    host.resume();
}

} // namespace

bool start_steps()
{
    if (!host.step_ended) return true;
    auto handle = at::addGlobalCallback(at::RecordFunctionCallback(on_range_start, on_range_end)
                                            .scopes({at::RecordScope::USER_SCOPE}));
    return handle != at::INVALID_CALLBACK_HANDLE;
}

} // namespace phantora
