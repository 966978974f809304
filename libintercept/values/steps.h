/* steps.h - marks of training steps (steps.cpp). */
#ifndef PHANTORA_VALUES_STEPS_H
#define PHANTORA_VALUES_STEPS_H

namespace phantora
{

/* PyTorch's name of the range around an optimizer's step: torch/optim/optimizer.py,
 * profile_hook_step */
constexpr const char *kStepEnds = "Optimizer.step#";

/* Observes the ends of optimizer steps in all threads. False when PyTorch refuses the callback. */
bool start_steps();

} // namespace phantora
#endif
