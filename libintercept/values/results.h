/* results.h - gives values to an operator's results when it has ended.
 *
 * Why it exists: the outputs exist by then but hold nothing. They get what the CPU computes, a
 * choice, or zeros. This is also where results of large tensors, and of operators that are not run,
 * are marked as undefined. */
#ifndef PHANTORA_VALUES_RESULTS_H
#define PHANTORA_VALUES_RESULTS_H
#include "values/frame.h"

namespace phantora
{

/* Gives `outputs`, and whatever the operator has changed, their values. `outer`: the enclosing
 * operator, or nullptr. */
void give_values(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs);

} // namespace phantora
#endif
