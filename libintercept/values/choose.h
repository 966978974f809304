/* choose.h - what --values decides when only a GPU could know a result. See choose.cpp. */
#ifndef PHANTORA_VALUES_CHOOSE_H
#define PHANTORA_VALUES_CHOOSE_H
#include "values/operators.h"

namespace phantora
{

/* Whether the result of `op` depends on values that nothing computed. Pending results of its
 * arguments must have been settled. */
bool to_be_chosen(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* Writes the policy's choice into the results of `op`. `ran`: it ran on the CPU; otherwise its
 * small results are zero. False when there is nothing to choose; the results then stay as they are.
 * Throws what ATen throws. */
bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran);

/* The same with a recorded choice (replay.h). */
bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran, const at::Tensor &given);

/* Whether a small tensor holds an infinity or a NaN. `bytes` are its bytes, or a copy saved before
 * they changed. */
bool non_finite(const at::Tensor &tensor, const void *bytes);

/* Replaces the infinities and NaNs in a small tensor by zero. */
void make_finite(const at::Tensor &tensor);

} // namespace phantora
#endif
