/* run.cpp - runs one small operator on the CPU. See run.h. */
#include "values/run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "values/host_api.h"
#include "values/tensors.h"

namespace phantora
{

Counts counts;

namespace
{

/* The OpenMP library that torch brings. Its thread count is a setting of the calling thread. */
struct OpenMp {
    int (*most)() = nullptr;
    void (*set)(int) = nullptr;

    OpenMp()
    {
        void *torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
        if (!torch) return;
        most = reinterpret_cast<int (*)()>(dlsym(torch, "omp_get_max_threads"));
        set = reinterpret_cast<void (*)(int)>(dlsym(torch, "omp_set_num_threads"));
        dlclose(torch);
    }
};

const OpenMp &openmp()
{
    static OpenMp found;
    return found;
}

} // namespace

OneThread::OneThread() : before_(openmp().most && openmp().set ? openmp().most() : 1)
{
    if (before_ > 1) openmp().set(1);
}

OneThread::~OneThread()
{
    if (before_ > 1) openmp().set(before_);
}

namespace
{

/* The arguments for the CPU kernel. With `widen`, tensors of 16-bit floats become float copies, for
 * CPU kernels that have no narrower type; what the kernel writes to them is copied back. */
class Arguments
{
public:
    Arguments(const Operator &op, c10::ArrayRef<c10::IValue> inputs, bool widen) : widen_(widen)
    {
        for (const auto &input : inputs) stack.push_back(convert(input));
        /* CUDA's softmax can read 16-bit floats and return float. The CPU's needs floats for that.
         */
        if (op.softmax && stack[2].toBool()) {
            stack[0] = stack[0].toTensor().to(at::kFloat);
            stack[2] = false;
        }
    }

    void bring_back() const
    {
        for (const auto &[narrow, wide] : widened_) narrow.copy_(wide);
    }

    std::vector<c10::IValue> stack;

private:
    c10::IValue convert(const c10::IValue &value)
    {
        c10::IValue converted = on_cpu(value);
        if (!widen_) return converted;
        if (converted.isTensor()) return widen_one(converted.toTensor());
        if (!converted.isList()) return converted;
        auto list = converted.toList();
        for (size_t i = 0; i < list.size(); i++) {
            c10::IValue item = list.get(i);
            if (item.isTensor()) list.set(i, widen_one(item.toTensor()));
        }
        return converted;
    }

    at::Tensor widen_one(const at::Tensor &tensor)
    {
        if (!tensor.defined() || !c10::isReducedFloatingType(tensor.scalar_type())) return tensor;
        widened_.emplace_back(tensor, tensor.to(at::kFloat));
        return widened_.back().second;
    }

    bool widen_;
    std::vector<std::pair<at::Tensor, at::Tensor>> widened_;
};

std::vector<c10::IValue> call(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                              const std::optional<at::Generator> &generator, bool widen)
{
    Arguments arguments(op, inputs, widen);
    if (op.substitute) return op.substitute({op.handle.schema(), arguments.stack, generator});
    if (generator && op.generator >= 0) arguments.stack[op.generator] = *generator;
    /* An operator that returns what it wrote to reads it off the stack after it has dropped it. */
    std::vector<c10::IValue> kept;
    if (op.any_written) kept = arguments.stack;
    c10::Dispatcher::singleton().callBoxed(op.handle, &arguments.stack);
    if (widen && op.any_written) arguments.bring_back();
    return std::move(arguments.stack);
}

std::vector<c10::IValue> call_as_wide_as_needed(const Operator &op,
                                                c10::ArrayRef<c10::IValue> inputs,
                                                const std::optional<at::Generator> &generator)
{
    try {
        return call(op, inputs, generator, false);
    } catch (const c10::Error &error) {
        /* AT_DISPATCH's words when a kernel lacks a type. It throws before anything is written. */
        if (!std::strstr(error.what_without_backtrace(), "not implemented for")) throw;
    }
    return call(op, inputs, generator, true);
}

void copy_result(const c10::IValue &output, const c10::IValue &result)
{
    if (result.isNone()) { /* only the GPU operator keeps this result; the substitute cannot know it
                            */
        zero(output);
        return;
    }
    std::vector<at::Tensor> from;
    each_tensor(result, [&](const at::Tensor &tensor) { from.push_back(tensor); });
    size_t i = 0;
    each_tensor(output, [&](const at::Tensor &tensor) {
        TORCH_CHECK(i < from.size(), "the CPU gave ", from.size(), " tensors");
        const at::Tensor &value = from[i++];
        /* Results that were not asked for are empty on one side or on both. */
        if (!on_device(tensor) || tensor.numel() == 0 || !value.defined() || value.numel() == 0)
            return;
        if (value.dim() == tensor.dim() && value.dim() > 0 && value.size(-1) < tensor.size(-1) &&
            value.sizes().slice(0, value.dim() - 1) == tensor.sizes().slice(0, tensor.dim() - 1)) {
            /* the GPU's kernel pads its rows */
            cpu_alias(tensor).narrow(-1, 0, value.size(-1)).copy_(value);
            return;
        }
        TORCH_CHECK(value.numel() == tensor.numel(), "the CPU gave another size");
        cpu_alias(tensor).copy_(value.sizes() == tensor.sizes() ? value
                                                                : value.reshape(tensor.sizes()));
    });
}

void count_failure(const Operator &op, const char *reason)
{
    counts.failed++;
    if (host.failed) host.failed(op.name.c_str(), reason);
}

uint64_t mix(uint64_t x)
{
    /* SplitMix64's finaliser (Steele, Lea, Flood 2014): neighbouring states must not give
     * neighbouring seeds. */
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27, x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

} // namespace

std::optional<at::Generator> stand_in_generator(const Operator &op,
                                                c10::ArrayRef<c10::IValue> inputs, uint64_t salt)
{
    try {
        at::Generator source;
        if (op.generator >= 0 && inputs[op.generator].isGenerator()) {
            source = inputs[op.generator].toGenerator();
        } else {
            c10::Device device(c10::kCUDA, 0);
            for (const auto &input : inputs)
                each_tensor(input, [&](const at::Tensor &tensor) {
                    if (on_device(tensor)) device = tensor.device();
                });
            source = at::globalContext().defaultGenerator(device);
        }
        std::lock_guard<std::mutex> guard(source.mutex());
        return at::detail::createCPUGenerator(
            mix(source.current_seed() + mix(source.get_offset() + 1) + salt));
    } catch (const std::exception
                 &) { /* a generator that a graph capture has taken over does not show its state */
        return std::nullopt;
    }
}

bool run(const Operator &op, c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs,
         const std::optional<at::Generator> &generator)
{
    try {
        PlainCpu guard;
        auto results = call_as_wide_as_needed(op, inputs, generator);
        TORCH_CHECK(results.size() == outputs.size(), "the CPU gave ", results.size(), " values");
        for (size_t i = 0; i < outputs.size(); i++)
            if (op.fresh[i]) copy_result(outputs[i], results[i]);
        counts.ran++;
        return true;
    } catch (const c10::Error &error) {
        count_failure(op, error.what_without_backtrace());
    } catch (const std::exception &error) {
        count_failure(op, error.what());
    }
    for (size_t i = 0; i < outputs.size(); i++)
        if (op.fresh[i]) zero(outputs[i]);
    return false;
}

int64_t number_read_back(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    try {
        PlainCpu guard;
        c10::IValue result = call_as_wide_as_needed(op, inputs, std::nullopt)[0];
        return result.isBool() ? result.toBool() : result.toTensor().size(0);
    } catch (const std::exception &error) {
        count_failure(op, error.what());
        return 0;
    }
}

at::Tensor kept_copy(const at::Tensor &tensor)
{
    PlainCpu guard;
    at::Tensor copy = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
}

void zero(const c10::IValue &value)
{
    each_tensor(value, [](const at::Tensor &tensor) {
        if (!on_device(tensor) || size_of(tensor) != Size::kSmall || tensor.numel() == 0) return;
        if (tensor.is_non_overlapping_and_dense() && tensor.nbytes() > kSmallBytes) {
            host.discard(address(tensor), tensor.nbytes());
        } else if (tensor.is_non_overlapping_and_dense()) {
            std::memset(address(tensor), 0, tensor.nbytes());
        } else {
            PlainCpu guard;
            cpu_alias(tensor).zero_();
        }
        mark(tensor, true);
        counts.zeroed++;
    });
}

} // namespace phantora
