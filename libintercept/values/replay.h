/* replay.h - choices of a leader's GPU, recorded and later given to a simulated rank (--values
 * replay). See replay.cpp. */
#ifndef PHANTORA_VALUES_REPLAY_H
#define PHANTORA_VALUES_REPLAY_H
#include <ATen/core/Tensor.h>

#include <string>

#include "values/operators.h"

namespace phantora
{

/* The replay key of `op` if it chooses by value; otherwise empty. A leader and a simulated rank
 * make the same text. Looks at the arguments' shapes and numbers, never at device memory. */
std::string replay_key(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* In a leader: keeps what its GPU chose. */
void record_choice(const std::string &replay_key, const Operator &op,
                   c10::ArrayRef<c10::IValue> outputs);

/* In a simulated rank: the choice recorded for this occurrence, as a tensor of the choice's shape;
 * undefined when there is none. The occurrence counts even if the value is not `wanted`. */
at::Tensor recorded_choice(const std::string &replay_key, const Operator &op,
                           c10::ArrayRef<c10::IValue> outputs, bool wanted);

} // namespace phantora
#endif
