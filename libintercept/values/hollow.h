/* hollow.h - large floating-point tensors in host memory that hold nothing.
 *
 * Why it exists: a model that is built on the CPU, its optimizer and its checkpoint are large, and
 * nothing here depends on their values. Once a process holds more than a budget of large host
 * tensors (simulated/memory/host_tensors.c), operators on large floats of the CPU are charged and
 * skipped where that is known to be right, and run and forgotten elsewhere. Rule: integers, and
 * tensors of less than 1 MiB, are always computed; whoever reads a hollow tensor is counted. */
#ifndef PHANTORA_VALUES_HOLLOW_H
#define PHANTORA_VALUES_HOLLOW_H
#include <ATen/core/Tensor.h>

namespace phantora
{

/* Puts our allocator in the place of PyTorch's for host memory. */
void allocate_host_tensors();

/* Skips and watches operators on host tensors from here on. */
void hollow_host_tensors();

} // namespace phantora
#endif
