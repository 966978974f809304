/* run.h - runs one small operator on the CPU, over the bytes of the device tensors.
 *
 * Why it exists: the job must not notice that an operator runs here: no autograd, no modes, no
 * warnings, no draw from the job's own generators, and no exception. */
#ifndef PHANTORA_VALUES_RUN_H
#define PHANTORA_VALUES_RUN_H
#include <ATen/core/Generator.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <optional>
#include <vector>

#include "values/operators.h"

namespace phantora
{

/* The job gets warnings from its own operator. The same operator on the CPU would repeat them. */
struct Silence : c10::WarningHandler {
    void process(const c10::Warning &) override {}
};

/* One OpenMP thread only. The other threads are the job's; there are many ranks and few processors,
 * and waiting for a busy thread costs more than the work. */
class OneThread
{
public:
    OneThread();
    ~OneThread();

private:
    int before_;
};

/* Only plain CPU kernels are called, whatever modes, autograd or transforms surround the job's
 * operator. */
struct PlainCpu {
    OneThread alone;
    at::DisableRecordFunctionGuard unrecorded;
    c10::impl::ForceDispatchKeyGuard plain{c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
                                           c10::default_excluded_set |
                                               c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                               c10::python_ks};
    Silence silence;
    c10::WarningUtils::WarningHandlerGuard silent{&silence};
};

struct Counts {
    std::atomic<uint64_t> ran{0}, zeroed{0}, failed{0}, read_back{0};
};
extern Counts counts;

/* A generator that gives the same numbers whenever the device generator that the operator would use
 * is in the same state; nullopt when that state cannot be read. Call before the operator draws.
 * `salt` tells apart operators that see the same state. */
std::optional<at::Generator> stand_in_generator(const Operator &op,
                                                c10::ArrayRef<c10::IValue> inputs,
                                                uint64_t salt = 0);

/* Runs `op` on the aliases of `inputs` and writes its results into `outputs`. False when it cannot
 * be run; fresh outputs are then zero. The device memory involved must have been settled
 * (HostApi::before_read). */
bool run(const Operator &op, c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs,
         const std::optional<at::Generator> &generator);

/* The number that the host will read back within `op` (Operator::read_back); 0 when it cannot be
 * computed. */
int64_t number_read_back(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* A copy of a CPU tensor that operators cannot tell from it. */
at::Tensor kept_copy(const at::Tensor &tensor);

/* Zeroes every small device tensor in `value`. */
void zero(const c10::IValue &value);

} // namespace phantora
#endif
