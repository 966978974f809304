/* replay.h - choices that a leader's GPU made, recorded and told again (--values replay). See
 * replay.cpp. */
#ifndef PHANTORA_VALUES_REPLAY_H
#define PHANTORA_VALUES_REPLAY_H
#include <ATen/core/Tensor.h>

#include <string>

#include "values/operators.h"

namespace phantora
{

/* What is asked where `op` chooses by values, in words that are the same in a leader and in a
 * simulated rank; empty where it does not. Looks at the arguments' shapes and numbers, never at
 * device memory. */
std::string question(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* A leader: keeps what its GPU chose. */
void record_choice(const std::string &question, const Operator &op,
                   c10::ArrayRef<c10::IValue> outputs);

/* A simulated rank: what was recorded for this occasion as a tensor of the choice's shape,
 * undefined where there is nothing. Asking counts, also where the answer is not `wanted`. */
at::Tensor recorded_choice(const std::string &question, const Operator &op,
                           c10::ArrayRef<c10::IValue> outputs, bool wanted);

} // namespace phantora
#endif
