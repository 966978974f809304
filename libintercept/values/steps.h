/* steps.h - marks of training steps (steps.cpp). */
#ifndef PHANTORA_VALUES_STEPS_H
#define PHANTORA_VALUES_STEPS_H
#include <ATen/record_function.h>

#include <cstring>

namespace phantora
{

/* Whether this is the range around an optimizer's step. Its name is of torch/optim/optimizer.py,
 * profile_hook_step. */
inline bool is_optimizer(const at::RecordFunction &function)
{
    constexpr const char *kName = "Optimizer.step#";
    return std::strncmp(function.name(), kName, std::strlen(kName)) == 0;
}

/* Observes the ends of optimizer steps in all threads. False when PyTorch refuses the callback. */
bool start_steps();

/* A step has ended. With PHANTORA_UNOBSERVED=steps this turns the observation of operators off or
 * on again, so that it differs from one step to the next (callback.cpp). */
void observe_other_steps();

} // namespace phantora
#endif
