/* weigh.cpp - what it costs the job that its operators are observed.
 *
 * Why it exists: a leader records the job's own host time between calls, and observes every
 * operator of PyTorch meanwhile. What we do about one is timed and taken off. But PyTorch packs the
 * operator's arguments before it calls us, and looks for observers: so one operator is run many
 * times, observed and not, and the difference of the job's time as it is recorded is taken off as
 * well. */
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
/* we never take that long: the thread did not run meanwhile */
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
    int64_t before = face.job_ns();
    for (int i = 0; i < kOperators; i++) tensor.add_(other);
    return face.job_ns() - before;
}

uint64_t weigh()
{
    int64_t start = face.job_ns(), with = INT64_MAX, without = INT64_MAX;
    at::Tensor tensor = at::ones({4}), other = at::ones({4});
    for (int i = 0; i < kRounds; i++) {
        with = std::min(with, round_ns(tensor, other, true));
        without = std::min(without, round_ns(tensor, other, false));
    }
    face.weighed(start);
    return with > without ? static_cast<uint64_t>(with - without) / kOperators : 0;
}

} // namespace

uint64_t weight_ns()
{
    static std::atomic<int> state{kNever};
    static std::atomic<uint64_t> weight{0};
    int expected = kNever;
    if (state.load(std::memory_order_relaxed) == kNever &&
        state.compare_exchange_strong(expected, kNow)) {
        /* the operators that it runs come here as well, and weigh nothing yet */
        weight.store(weigh());
        state.store(kDone);
    }
    return weight.load(std::memory_order_relaxed);
}

Watched::Watched(uint64_t before_ns) : before_ns_(before_ns), start_ns_(now_ns()) {}

Watched::~Watched()
{
    uint64_t ours = now_ns() - start_ns_;
    face.observed(before_ns_ + (ours < kInterruptedNs ? ours : 0));
}

} // namespace phantora
