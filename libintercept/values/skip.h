/* skip.h - CPU kernels that are skipped on large tensors of floats.
 *
 * Why it exists: initialisation, copies and element-wise operators on a model in host memory would
 * take minutes of CPU time and all of its memory, to give values that nothing depends on. Their
 * kernels are replaced by one that charges the time they take on a cluster's host, and marks what
 * they would have written as hollow. */
#ifndef PHANTORA_VALUES_SKIP_H
#define PHANTORA_VALUES_SKIP_H
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace phantora
{

/* Whether replace_kernels replaces the CPU kernel of an operator. */
bool is_replaced(const c10::OperatorHandle &handle);

/* Replaces them, for the life of the process. */
void replace_kernels();

/* A large tensor of floats in a block of the interceptor's. */
bool can_be_hollow(const at::Tensor &tensor);

/* Forgets what a tensor holds. can_be_hollow must be true. */
void make_hollow(const at::Tensor &tensor);

} // namespace phantora
#endif
