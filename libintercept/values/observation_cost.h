/* weigh.h - what observing operators costs the job. See weigh.cpp. */
#ifndef PH_VALUES_WEIGH_H
#define PH_VALUES_WEIGH_H

#include <cstdint>

namespace phantora
{

/* What an observed operator costs the job before and after we are called, nanoseconds; weighed by
 * the first call, which must come while the thread's time is being recorded (face.recording). */
uint64_t weight_ns();

/* From here to its end this thread's time is ours, and so are `before_ns` that have passed already.
 * Unlike a pause it asks the kernel nothing: two system calls for each operator would slow the
 * job's own code by what they drive out of the caches. */
class Watched
{
public:
    explicit Watched(uint64_t before_ns);
    ~Watched();

private:
    uint64_t before_ns_, start_ns_;
};

} // namespace phantora
#endif
