/* choose.h - what --values decides where only a GPU could know. See choose.cpp. */
#ifndef PHANTORA_VALUES_CHOOSE_H
#define PHANTORA_VALUES_CHOOSE_H
#include "values/operators.h"

namespace phantora
{

/* Whether the result of `op` hangs on values that nothing computed. What is owed to its arguments
 * must have been settled. */
bool to_be_chosen(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* Writes the policy's choice into the results of `op`, which has `ran` on the CPU or whose small
 * results are zero. False when there is nothing to choose: the results stay as they are. Throws
 * what ATen throws. */
bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran);

/* The same with a choice that is given (replay.h). */
bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran, const at::Tensor &given);

/* Whether a small tensor, whose bytes may have been saved elsewhere before they changed, holds an
 * infinity or a NaN. */
bool non_finite(const at::Tensor &tensor, const void *bytes);

/* Makes zero of the infinities and NaNs in a small tensor. */
void make_finite(const at::Tensor &tensor);

} // namespace phantora
#endif
