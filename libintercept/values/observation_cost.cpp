/* observation_cost.cpp - what it costs the job that its operators are observed.
 *
 * Why it exists: a leader records the job's own host time between calls, and observes every PyTorch
 * operator meanwhile. The time spent in our callback is measured and subtracted. PyTorch also looks
 * for observers and packs the operator's arguments before it calls us. To measure that, one
 * operator runs many times with and without observation; the difference of the recorded job time is
 * subtracted as well. */
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
/* our callback never takes that long: the thread was not running meanwhile */
constexpr uint64_t kInterruptedNs = 20000;
enum { kNever, kNow, kDone };

uint64_t now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* no system call */
    return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

int64_t round_ns(at::Tensor &tensor, const at::Tensor &other, bool observed)
{
    at::RecordFunctionGuard guard(observed);
    int64_t before = host.job_ns();
    for (int i = 0; i < kOperators; i++) tensor.add_(other);
    return host.job_ns() - before;
}

uint64_t measure_cost()
{
    int64_t start = host.job_ns(), with = INT64_MAX, without = INT64_MAX;
    at::Tensor tensor = at::ones({4}), other = at::ones({4});
    for (int i = 0; i < kRounds; i++) {
        with = std::min(with, round_ns(tensor, other, true));
        without = std::min(without, round_ns(tensor, other, false));
    }
    host.set_job_ns(start);
    return with > without ? static_cast<uint64_t>(with - without) / kOperators : 0;
}

} // namespace

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

ExcludedTime::ExcludedTime(uint64_t before_ns) : before_ns_(before_ns), start_ns_(now_ns()) {}

ExcludedTime::~ExcludedTime()
{
    uint64_t ours = now_ns() - start_ns_;
    host.exclude(before_ns_ + (ours < kInterruptedNs ? ours : 0));
}

} // namespace phantora
