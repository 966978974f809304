/* observation_cost.h - what observing operators costs the job. See observation_cost.cpp. */
#ifndef PHANTORA_VALUES_OBSERVATION_COST_H
#define PHANTORA_VALUES_OBSERVATION_COST_H

#include <cstdint>

namespace phantora
{

/* Whether this thread's CPU time now counts as the job's, or is being tried out. */
bool time_is_measured();

/* Whether this thread's operators only show what observing costs. */
bool on_trial();

/* What observing an operator whose arguments hold lists of so many members costs the job outside
 * our callback, in nanoseconds. The first call measures it. */
uint64_t observation_cost_ns(uint64_t members);

/* While it lives, this thread's time is not the job's, and neither are `before_ns` that have passed
 * already. Unlike a pause it makes no system call. A pause within it is not counted twice. One per
 * thread at a time. */
class ExcludedTime
{
public:
    explicit ExcludedTime(uint64_t before_ns);
    ~ExcludedTime();
    ExcludedTime(const ExcludedTime &) = delete;
    ExcludedTime &operator=(const ExcludedTime &) = delete;

private:
    uint64_t start_ns_ = 0; /* of a trial; in a job the interceptor has it */
};

} // namespace phantora
#endif
