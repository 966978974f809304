/* capture.h - small operators of a CUDA graph: kept when they are captured, run whenever the graph
 * is launched.
 *
 * Why it exists: a launch of a graph dispatches no operator, yet on a GPU it computes what was
 * captured, each time from what the memory holds by then. What is kept are views of addresses: a
 * graph owns none of the tensors that its kernels read and write, and the caching allocator gives
 * their memory to later tensors of the same capture. */
#ifndef PHANTORA_VALUES_CAPTURE_H
#define PHANTORA_VALUES_CAPTURE_H
#include <ATen/core/ivalue.h>

#include <functional>

namespace phantora
{

/* Whether the stream that this thread launches on is captured. Next to nothing while no capture is
 * under way in the process. */
bool capturing();

void *current_stream(); /* that this thread launches on, as CUDA's handle */

/* Calls `what` at every launch of the graph that is being captured, in the order of these calls and
 * of the graph's nodes. */
void at_launch(std::function<void()> what);

/* `value` with every CUDA tensor replaced by one over the same bytes that owns nothing, and every
 * CPU tensor by a copy: what a kernel gets of it (a scalar) is fixed when it is captured. */
c10::IValue captured_view(const c10::IValue &value);
at::Tensor captured_view(const at::Tensor &tensor);

} // namespace phantora
#endif
