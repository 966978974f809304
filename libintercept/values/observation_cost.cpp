/* observation_cost.cpp - what it costs the job that its operators are observed.
 *
 * Why it exists: where the job's own host time is measured, every PyTorch operator is observed
 * meanwhile. The time in our callback is measured and subtracted. PyTorch also looks for observers,
 * and packs the operator's arguments and results, each member of a list by itself. To measure that,
 * a mix of operators runs many times with and without observation: what the difference holds beside
 * the callback's own time is subtracted for every operator. A mix, because one operator in a loop
 * stays in the first-level caches, and is observed in a third of the time. */
#include "values/observation_cost.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "values/host_api.h"

namespace phantora
{
namespace
{

/* In a job the code and data of an observation are rarely in the first-level caches, and Python
 * owns the tensors. Measured with and without observation (PHANTORA_UNOBSERVED), 160M Llama, 206 ns
 * on trial: 630 ns (one GPU), 570 (DDP), 1,000 (FSDP), 950 (TP). */
constexpr double kInJobs = 3.6;
constexpr int kMixes = 16, kRounds = 21, kMembers = 64;
enum { kNever, kNow, kDone };

thread_local struct {
    bool on;
    uint64_t excluded_ns, observed;
} trial;

struct Costs {
    uint64_t per_operator_ns, per_member_ns;
};

uint64_t now_ns(clockid_t clock)
{
    timespec t;
    clock_gettime(clock, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

/* CLOCK_MONOTONIC makes no system call */
uint64_t now_ns() { return now_ns(CLOCK_MONOTONIC); }

/* What training runs most: views, allocations, arithmetic, copies. */
void mix(const at::Tensor &tensor, const at::Tensor &other, at::Tensor &out)
{
    at::Tensor turned = tensor.view({4, 2}).t();
    at::Tensor sum = turned.add(other, 2);
    out.copy_(sum.transpose(0, 1).reshape({8}));
    at::Tensor fresh = at::empty({8}, tensor.options());
    fresh.mul_(0.5).add_(out);
    fresh.narrow(0, 0, 4).unsqueeze(0).detach();
    fresh.to(at::kDouble).sum();
}

/* CPU time of `body` in ns, less the callback's own. */
template <class Body>
int64_t spent_ns(bool observed, Body body)
{
    at::RecordFunctionGuard guard(observed);
    trial.excluded_ns = trial.observed = 0;
    uint64_t before = now_ns(CLOCK_THREAD_CPUTIME_ID);
    body();
    return static_cast<int64_t>(now_ns(CLOCK_THREAD_CPUTIME_ID) - before - trial.excluded_ns);
}

/* The cost of one observation in ns: by how much `body` takes longer with observation than without,
 * in the median of kRounds pairs of rounds, divided by the `number` of its observations (0: count
 * them). The rounds are compared in pairs, because the speed of a core may change meanwhile. */
template <class Body>
uint64_t cost_ns(uint64_t number, Body body)
{
    std::array<int64_t, kRounds> longer{};
    for (int64_t &difference : longer) {
        int64_t without = spent_ns(false, body);
        difference = spent_ns(true, body) - without;
    }
    std::nth_element(longer.begin(), longer.begin() + kRounds / 2, longer.end());
    int64_t middle = longer[kRounds / 2];
    if (!number) number = trial.observed;
    return number && middle > 0 ? static_cast<uint64_t>(middle) / number : 0;
}

Costs measure_costs()
{
    Costs found{};
    trial.on = true;
    host.pause();
    {
        at::Tensor tensor = at::ones({8}), other = at::ones({2, 4}), out = at::ones({8});
        std::vector<at::Tensor> members;
        for (int i = 0; i < kMembers; i++) members.push_back(at::ones({4}));
        found.per_operator_ns = cost_ns(0, [&] {
            for (int i = 0; i < kMixes; i++) mix(tensor, other, out);
        });
        found.per_operator_ns = static_cast<uint64_t>(kInJobs * found.per_operator_ns);
        found.per_member_ns = cost_ns(2 * kMembers, [&] { at::_foreach_add_(members, members); });
    }
    host.resume();
    trial.on = false;
    return found;
}

} // namespace

bool on_trial() { return trial.on; }

bool time_is_measured() { return trial.on || host.measuring(); }

uint64_t observation_cost_ns(uint64_t members)
{
    static std::atomic<int> state{kNever};
    static std::atomic<uint64_t> per_operator{0}, per_member{0};
    if (trial.on) trial.observed++;
    int expected = kNever;
    if (state.load(std::memory_order_relaxed) == kNever &&
        state.compare_exchange_strong(expected, kNow)) {
        /* the operators that it runs also come here; until it is done their cost is 0 */
        Costs found = measure_costs();
        per_operator.store(found.per_operator_ns), per_member.store(found.per_member_ns);
        state.store(kDone);
    }
    return per_operator.load(std::memory_order_relaxed) +
           members * per_member.load(std::memory_order_relaxed);
}

ExcludedTime::ExcludedTime(uint64_t before_ns)
{
    if (trial.on)
        start_ns_ = now_ns();
    else
        host.exclude_begin(before_ns);
}

ExcludedTime::~ExcludedTime()
{
    if (trial.on)
        trial.excluded_ns += now_ns() - start_ns_;
    else
        host.exclude_end();
}

Paused::Paused() { host.pause(); }

Paused::~Paused() { host.resume(); }

} // namespace phantora
