/* observe.h - callbacks at all that PyTorch tells of: operators, their backward, and named ranges.
 *
 * Why it exists: two parts look at all three (trace.cpp, modules.cpp), and must see the same. */
#ifndef PHANTORA_VALUES_OBSERVE_H
#define PHANTORA_VALUES_OBSERVE_H
#include <ATen/record_function.h>

namespace phantora
{

/* In all threads, from now on. False when PyTorch refuses the callbacks. */
inline bool observe_everything(at::RecordFunctionCallback::StartCallback start,
                               at::RecordFunctionCallback::EndCallback end)
{
    auto handle = at::addGlobalCallback(
        at::RecordFunctionCallback(start, end)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                     at::RecordScope::USER_SCOPE}));
    return handle != at::INVALID_CALLBACK_HANDLE;
}

} // namespace phantora
#endif
