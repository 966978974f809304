/* face.cpp - finds the interceptor's functions. See face.h. */
#include "values/host_api.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace phantora
{

Face face;

bool find_face()
{
    auto find = [](auto &function, const char *name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
        return function != nullptr;
    };
    face.observe_only = dlsym(RTLD_DEFAULT, "phantora_values_observe_only") != nullptr;
    int (*records)() = nullptr;
    if (face.observe_only && find(records, "phantora_values_records") && records())
        find(face.record, "phantora_values_record");
    if (face.observe_only)
        return find(face.operator_begin, "phantora_operator_begin") &&
               find(face.operator_end, "phantora_operator_end") &&
               find(face.recording, "phantora_values_recording") &&
               find(face.job_ns, "phantora_values_job_ns") &&
               find(face.weighed, "phantora_values_weighed") &&
               find(face.observed, "phantora_values_observed");
    find(face.plant, "phantora_values_scalar_readback");
    const char *(*policy)() = nullptr;
    find(policy, "phantora_values_policy");
    std::string named = policy && policy() ? policy() : "";
    face.balanced = named == "balanced" || named == "replay";
    if (named == "replay") find(face.replay, "phantora_values_replay");
    find(face.failed, "phantora_values_failed");
    if (!find(face.capture_append, "phantora_capture_append") ||
        !find(face.capture_check, "phantora_capture_check") ||
        !find(face.captures, "phantora_captures"))
        face.captures = nullptr;
    return find(face.is_device, "phantora_is_device") &&
           find(face.pause, "phantora_values_pause") &&
           find(face.resume, "phantora_values_resume") &&
           find(face.before_read, "phantora_values_before_read") &&
           find(face.written, "phantora_values_mark_dirty") &&
           find(face.copy_begins, "phantora_values_copy_begins") &&
           find(face.absent, "phantora_values_is_clean") &&
           find(face.unknown, "phantora_values_mark_undefined") &&
           find(face.known, "phantora_values_mark_defined") &&
           find(face.any_unknown, "phantora_values_any_undefined") &&
           find(face.chosen, "phantora_values_chosen") &&
           find(face.forget, "phantora_values_discard") &&
           find(face.operator_begin, "phantora_operator_begin") &&
           find(face.operator_end, "phantora_operator_end");
}

} // namespace phantora
