/* results.h - what an operator leaves behind when it has ended.
 *
 * Why it exists: its outputs are there by then, and nothing is in them: they get what the CPU
 * computes, or a choice, or zeros. What large tensors and operators that are not run make unknown
 * is said here as well. */
#ifndef PHANTORA_VALUES_RESULTS_H
#define PHANTORA_VALUES_RESULTS_H
#include "values/frame.h"

namespace phantora
{

/* Gives `outputs`, and what the operator has changed, their values. `outer`: the operator within
 * which it ran, or nullptr. */
void give_values(Frame &frame, Frame *outer, c10::ArrayRef<c10::IValue> outputs);

} // namespace phantora
#endif
