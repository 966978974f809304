/* modules.h - says from which module of the model memory is allocated (modules.cpp). */
#ifndef PHANTORA_VALUES_MODULES_H
#define PHANTORA_VALUES_MODULES_H

namespace phantora
{

/* Whether the job runs with --memory-modules. */
bool memory_watched();

/* Does nothing unless the job is watched. False when torch does not take the callback. */
bool start_modules();

} // namespace phantora
#endif
