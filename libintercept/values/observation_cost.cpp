/* observation_cost.cpp - what it costs the job that its operators are observed.
 *
 * Why it exists: where the job's own host time is measured, every PyTorch operator is observed
 * meanwhile. The time in our callback is measured and subtracted. PyTorch also looks for observers
 * and packs the operator's arguments before it calls us. To measure that, one operator runs many
 * times with and without observation; what the difference holds beside the callback's own time is
 * subtracted for every operator. */
#include "values/observation_cost.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "values/host_api.h"

namespace phantora
{
namespace
{

constexpr int kOperators = 256, kRounds = 24;
/* what our callback takes at most between pauses; in a longer time the thread did not run */
constexpr uint64_t kLongestNs = 20000;
enum { kNever, kNow, kDone };

thread_local ExcludedTime *excluding;
thread_local int pauses;    /* they nest */
thread_local bool on_trial; /* this thread measures what observing costs */
thread_local uint64_t excluded_on_trial;

uint64_t now_ns(clockid_t clock)
{
    timespec t;
    clock_gettime(clock, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

/* CLOCK_MONOTONIC makes no system call */
uint64_t now_ns() { return now_ns(CLOCK_MONOTONIC); }

int64_t round_ns(at::Tensor &tensor, const at::Tensor &other, bool observed)
{
    at::RecordFunctionGuard guard(observed);
    excluded_on_trial = 0;
    uint64_t before = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < kOperators; i++) tensor.add_(other);
    return static_cast<int64_t>(now_ns(CLOCK_THREAD_CPUTIME_ID) - before - excluded_on_trial);
}

uint64_t measure_cost()
{
    int64_t with = INT64_MAX, without = INT64_MAX;
    on_trial = true;
    host.pause();
    {
        at::Tensor tensor = at::ones({4}), other = at::ones({4});
        for (int i = 0; i < kRounds; i++) {
            with = std::min(with, round_ns(tensor, other, true));
            without = std::min(without, round_ns(tensor, other, false));
        }
    }
    host.resume();
    on_trial = false;
    return with > without ? static_cast<uint64_t>(with - without) / kOperators : 0;
}

} // namespace

bool time_is_measured() { return on_trial || host.measuring(); }

uint64_t observation_cost_ns()
{
    static std::atomic<int> state{kNever};
    static std::atomic<uint64_t> cost{0};
    int expected = kNever;
    if (state.load(std::memory_order_relaxed) == kNever &&
        state.compare_exchange_strong(expected, kNow)) {
        /* the operators that it runs also come here; until it is done their cost is 0 */
        cost.store(measure_cost());
        state.store(kDone);
    }
    return cost.load(std::memory_order_relaxed);
}

ExcludedTime::ExcludedTime(uint64_t before_ns) : ours_ns_(before_ns), start_ns_(now_ns())
{
    excluding = this;
}

ExcludedTime::~ExcludedTime()
{
    stop();
    excluding = nullptr;
    if (on_trial)
        excluded_on_trial += ours_ns_;
    else
        host.exclude(ours_ns_);
}

void ExcludedTime::stop() { ours_ns_ += std::min(now_ns() - start_ns_, kLongestNs); }

void ExcludedTime::go_on() { start_ns_ = now_ns(); }

Paused::Paused()
{
    if (!pauses++ && excluding) excluding->stop();
    host.pause();
}

Paused::~Paused()
{
    host.resume();
    if (!--pauses && excluding) excluding->go_on();
}

} // namespace phantora
