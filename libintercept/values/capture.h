/* capture.h - small operators of a CUDA graph: recorded when they are captured, run at every launch
 * of the graph.
 *
 * Why it exists: a graph launch dispatches no operator, yet a GPU computes what was captured from
 * what its memory holds at that time. We keep views of addresses. A graph owns none of the tensors
 * that its kernels read and write, and the caching allocator gives their memory to later tensors of
 * the same capture. */
#ifndef PHANTORA_VALUES_CAPTURE_H
#define PHANTORA_VALUES_CAPTURE_H
#include <ATen/core/ivalue.h>

#include <functional>

namespace phantora
{

/* Whether the stream that this thread launches on is being captured. Nearly free while no capture
 * is under way in the process. */
bool capturing();

void *current_stream(); /* the stream that this thread launches on, as CUDA's handle */

/* Calls `what` at every launch of the graph that is being captured, in the order of these calls and
 * of the graph's ops. */
void at_launch(std::function<void()> what);

/* A copy of `value` in which every CUDA tensor is replaced by one over the same bytes that owns
 * nothing, and every CPU tensor by a copy: a kernel's host arguments (scalars) are fixed at
 * capture. */
c10::IValue captured_view(const c10::IValue &value);
at::Tensor captured_view(const at::Tensor &tensor);

} // namespace phantora
#endif
