/* observation_cost.h - what observing operators costs the job. See observation_cost.cpp. */
#ifndef PHANTORA_VALUES_OBSERVATION_COST_H
#define PHANTORA_VALUES_OBSERVATION_COST_H

#include <cstdint>

namespace phantora
{

/* What observing an operator costs the job outside our callback, in nanoseconds. The first call
 * measures it, and must come while the thread's time is being recorded (host.recording). */
uint64_t observation_cost_ns();

/* While it lives, this thread's time is not the job's, and neither are `before_ns` that have passed
 * already. Unlike a pause it makes no system call: two of them per operator would slow the job's
 * own code through the caches. */
class ExcludedTime
{
public:
    explicit ExcludedTime(uint64_t before_ns);
    ~ExcludedTime();

private:
    uint64_t before_ns_, start_ns_;
};

} // namespace phantora
#endif
