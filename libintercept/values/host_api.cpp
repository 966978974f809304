/* host_api.cpp - finds the interceptor's functions. See host_api.h. */
#include "values/host_api.h"

#include <dlfcn.h>

#include <string>

namespace phantora
{

HostApi host;

namespace
{

template <class Function>
bool find(Function &function, const char *name)
{
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
}

} // namespace

bool find_hollow_api()
{
    return find(host.host_alloc, "phantora_host_alloc") &&
           find(host.host_free, "phantora_host_free") &&
           find(host.is_block, "phantora_host_is_block") &&
           find(host.hollows, "phantora_host_hollows") &&
           find(host.any_hollow, "phantora_host_any_hollow") &&
           find(host.is_new, "phantora_host_is_new") &&
           find(host.make_hollow, "phantora_host_hollow") &&
           find(host.clear, "phantora_host_clear") && find(host.written, "phantora_host_written") &&
           find(host.read_hollow, "phantora_host_read") &&
           find(host.charge, "phantora_host_charge");
}

bool find_host_api()
{
    host.observe_only = dlsym(RTLD_DEFAULT, "phantora_values_observe_only") != nullptr;
    int (*records)() = nullptr;
    if (host.observe_only && find(records, "phantora_values_records") && records())
        find(host.record, "phantora_values_record");
    if (!find(host.operator_begin, "phantora_operator_begin") ||
        !find(host.operator_end, "phantora_operator_end") ||
        !find(host.pause, "phantora_values_pause") ||
        !find(host.resume, "phantora_values_resume") ||
        !find(host.measuring, "phantora_values_measuring") ||
        !find(host.observe_begin, "phantora_values_observe_begin") ||
        !find(host.observe_end, "phantora_values_observe_end"))
        return false;
    find(host.step_ended, "phantora_step_ended");
    find(host.report_peaks, "phantora_report_peaks");
    if (host.observe_only) return true;
    if (!find(host.memory_name, "phantora_memory_name") ||
        !find(host.memory_place, "phantora_memory_place") ||
        !find(host.memory_back, "phantora_memory_back") ||
        !find(host.memory_module, "phantora_memory_module") ||
        !find(host.memory_settle, "phantora_memory_settle") ||
        !find(host.memory_watched, "phantora_memory_watched"))
        host.memory_watched = nullptr;
    find(host.scalar_readback, "phantora_values_scalar_readback");
    const char *(*policy)() = nullptr;
    find(policy, "phantora_values_policy");
    std::string named = policy && policy() ? policy() : "";
    host.balanced = named == "balanced" || named == "replay";
    if (named == "replay") find(host.replay, "phantora_values_replay");
    find(host.failed, "phantora_values_failed");
    if (!find(host.capture_append, "phantora_capture_append") ||
        !find(host.capture_check, "phantora_capture_check") ||
        !find(host.captures, "phantora_captures"))
        host.captures = nullptr;
    return find(host.is_device, "phantora_is_device") &&
           find(host.before_read, "phantora_values_before_read") &&
           find(host.mark_dirty, "phantora_values_mark_dirty") &&
           find(host.copy_begins, "phantora_values_copy_begins") &&
           find(host.is_clean, "phantora_values_is_clean") &&
           find(host.mark_undefined, "phantora_values_mark_undefined") &&
           find(host.mark_defined, "phantora_values_mark_defined") &&
           find(host.any_undefined, "phantora_values_any_undefined") &&
           find(host.chosen, "phantora_values_chosen") &&
           find(host.discard, "phantora_values_discard");
}

} // namespace phantora
