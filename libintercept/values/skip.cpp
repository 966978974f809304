/* skip.cpp - CPU kernels that are skipped on large tensors of floats. See skip.h. */
#include "values/skip.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

enum class Kind { kDraw, kFill, kZero, kCopy, kPointwise, kJoin };

/* What is not element-wise by its tag. */
const std::unordered_map<std::string, Kind> kKinds = {
    {"aten::normal_", Kind::kDraw},       {"aten::uniform_", Kind::kDraw},
    {"aten::exponential_", Kind::kDraw},  {"aten::log_normal_", Kind::kDraw},
    {"aten::cauchy_", Kind::kDraw},       {"aten::bernoulli_", Kind::kDraw},
    {"aten::fill_", Kind::kFill},         {"aten::zero_", Kind::kZero},
    {"aten::copy_", Kind::kCopy},         {"aten::cat", Kind::kJoin},
};

bool is_large(const at::Tensor &tensor)
{
    return tensor.defined() && tensor.is_cpu() && is_plain(tensor) &&
           (tensor.is_floating_point() || tensor.is_complex()) &&
           static_cast<size_t>(tensor.numel()) * tensor.element_size() >= kHollowBytes &&
           span_bytes(tensor) >= kHollowBytes;
}

/* ---- what a host takes for it ----
 *
 * Measured with torch 2.11.0 on one thread of an AMD EPYC (bench/host_tensors). Draws are serial in
 * PyTorch, because they share a generator; all else is bound by memory, which a process's threads
 * share. */
constexpr double kDrawNs = 4.5;              /* per element */
constexpr double kThreadBytesPerNs = 9;      /* read and written by one thread */
constexpr double kProcessBytesPerNs = 40;    /* by all threads of a rank */

void charge(Kind kind, uint64_t elements, uint64_t bytes)
{
    double threads = at::get_num_threads(),
           speed = std::min(threads * kThreadBytesPerNs, kProcessBytesPerNs);
    double ns = kind == Kind::kDraw ? static_cast<double>(elements) * kDrawNs
                                    : static_cast<double>(bytes) / speed;
    host.charge(static_cast<uint64_t>(ns));
}

uint64_t bytes_of(const at::Tensor &tensor)
{
    return tensor.defined() ? static_cast<uint64_t>(tensor.numel()) * tensor.element_size() : 0;
}

/* The generator moves on, so that two draws differ; by one number, whatever the tensor's size. */
void advance(c10::ArrayRef<c10::IValue> arguments)
{
    for (const auto &argument : arguments) {
        if (!argument.isGenerator()) continue;
        at::Generator given = argument.toGenerator();
        std::lock_guard<std::mutex> guard(given.mutex());
        at::check_generator<at::CPUGeneratorImpl>(given)->random64();
        return;
    }
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> guard(generator.mutex());
    at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

at::Tensor on_meta(const at::Tensor &tensor)
{
    if (!tensor.defined()) return tensor;
    at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                        tensor.options().device(c10::kMeta).pinned_memory(false));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        meta.unsafeGetTensorImpl()->set_wrapped_number(true);
    return meta;
}

c10::IValue on_meta(const c10::IValue &value)
{
    if (value.isTensor()) return on_meta(value.toTensor());
    if (!value.isList()) return value;
    auto list = value.toList();
    auto copy = c10::impl::GenericList(list.elementType());
    for (const c10::IValue &item : value.toListRef())
        copy.push_back(item.isTensor() ? c10::IValue(on_meta(item.toTensor())) : item);
    return copy;
}

/* The kernel that stands in the place of the CPU's. */
class Skipping : public c10::OperatorKernel
{
public:
    Skipping(Kind kind, const c10::OperatorHandle &handle)
        : kind_(kind), plain_(handle.getComputedKernelForDispatchKey(c10::DispatchKey::CPU)),
          has_meta_(handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta))
    {
        const auto &schema = handle.schema();
        arguments_ = schema.arguments().size();
        returns_ = schema.returns().size();
        for (size_t i = 0; i < arguments_; i++) {
            const auto *alias = schema.arguments()[i].alias_info();
            if (alias && alias->isWrite()) written_.push_back(i);
        }
    }

    void operator()(const c10::OperatorHandle &handle, c10::DispatchKeySet keys,
                    torch::jit::Stack *stack)
    {
        if (any_large(*stack) && skip(handle, *stack)) return;
        plain_.callBoxed(handle, keys, stack);
        for (const auto &result : c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - returns_))
            if (can_be_hollow(result.toTensor())) make_hollow(result.toTensor());
    }

private:
    c10::ArrayRef<c10::IValue> arguments(const torch::jit::Stack &stack) const
    {
        return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - arguments_);
    }

    bool any_large(const torch::jit::Stack &stack) const
    {
        bool found = false;
        for (const auto &argument : arguments(stack))
            each_tensor(argument,
                        [&](const at::Tensor &tensor) { found = found || is_large(tensor); });
        return found;
    }

    bool skip(const c10::OperatorHandle &handle, torch::jit::Stack &stack)
    {
        auto given = arguments(stack);
        switch (kind_) {
        case Kind::kDraw:
        case Kind::kFill:
        case Kind::kZero:
            if (!can_be_hollow(given[0].toTensor())) return false;
            break;
        case Kind::kCopy: {
            const at::Tensor &to = given[0].toTensor(), &from = given[1].toTensor();
            if (!can_be_hollow(to) || !from.is_cpu() || !is_plain(from) ||
                !at::is_expandable_to(from.sizes(), to.sizes()))
                return false;
            break;
        }
        case Kind::kPointwise:
        case Kind::kJoin: return skip_by_shape(handle, stack);
        }
        charge(given);
        if (kind_ == Kind::kDraw) advance(given);
        at::Tensor self = given[0].toTensor();
        bool zero = kind_ == Kind::kZero ||
                    (kind_ == Kind::kFill && given[1].isScalar() &&
                     given[1].toScalar().equal(0));
        if (zero)
            host.clear(address(self), span_bytes(self));
        else
            make_hollow(self);
        return_(stack, {self});
        return true;
    }

    /* The meta kernel tells the shapes of the results, and refuses what the CPU's refuses. */
    bool skip_by_shape(const c10::OperatorHandle &handle, torch::jit::Stack &stack)
    {
        if (!has_meta_) return false;
        auto given = arguments(stack);
        for (size_t i : written_)
            if (!given[i].isTensor() || !can_be_hollow(given[i].toTensor())) return false;
        torch::jit::Stack meta;
        for (const auto &argument : given) meta.push_back(on_meta(argument));
        auto kept = meta;
        {
            PlainCpu guard;
            handle.callBoxed(&meta);
        }
        std::vector<at::Tensor> results;
        for (const auto &result : meta) {
            if (!result.isTensor()) return false;
            results.push_back(result.toTensor());
        }
        if (!written_.empty()) {
            if (results.size() != written_.size()) return false;
            for (size_t i = 0; i < results.size(); i++) {
                at::Tensor self = given[written_[i]].toTensor();
                if (results[i].sizes() != self.sizes()) return false; /* out= is resized */
                results[i] = self;
            }
        } else {
            for (auto &result : results)
                if (!(result.is_floating_point() || result.is_complex()) ||
                    bytes_of(result) < kHollowBytes)
                    return false;
            for (auto &result : results)
                result = at::empty_strided(result.sizes(), result.strides(),
                                           result.options().device(c10::kCPU));
            for (const auto &result : results)
                if (!can_be_hollow(result)) return false;
        }
        uint64_t bytes = written_.empty() ? bytes_of(results[0]) : 0;
        for (const auto &result : results) make_hollow(result);
        charge(given, bytes);
        return_(stack, results);
        return true;
    }

    void charge(c10::ArrayRef<c10::IValue> given, uint64_t bytes = 0) const
    {
        uint64_t elements = 0;
        for (const auto &argument : given)
            each_tensor(argument, [&](const at::Tensor &tensor) {
                bytes += bytes_of(tensor);
                elements = std::max<uint64_t>(elements, tensor.defined() ? tensor.numel() : 0);
            });
        phantora::charge(kind_, elements, bytes);
    }

    void return_(torch::jit::Stack &stack, const std::vector<at::Tensor> &results) const
    {
        torch::jit::drop(stack, arguments_);
        for (const auto &result : results) stack.emplace_back(result);
    }

    Kind kind_;
    c10::SafeKernelFunction plain_;
    bool has_meta_;
    size_t arguments_ = 0, returns_ = 0;
    std::vector<size_t> written_;
};

/* The names of element-wise operators, without the underscore of those that work in place. */
const std::unordered_set<std::string> &pointwise_names()
{
    static const auto *names = [] {
        auto *found = new std::unordered_set<std::string>;
        for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
            auto handle = c10::Dispatcher::singleton().findSchema(name);
            if (handle && handle->hasTag(at::Tag::pointwise)) {
                std::string plain = name.name;
                if (plain.back() == '_') plain.pop_back();
                found->insert(plain);
            }
        }
        return found;
    }();
    return *names;
}

bool find_kind(const c10::OperatorHandle &handle, Kind *kind)
{
    const std::string &name = handle.operator_name().name;
    if (name.rfind("aten::", 0) != 0) return false;
    bool own = name == "aten::copy_" || handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    if (!own || handle.schema().returns().empty()) return false;
    for (const auto &result : handle.schema().returns())
        if (result.type()->kind() != c10::TypeKind::TensorType ||
            (result.alias_info() && !result.alias_info()->isWrite()))
            return false;
    auto found = kKinds.find(name);
    if (found != kKinds.end()) {
        *kind = found->second;
        return true;
    }
    std::string plain = name;
    if (plain.back() == '_') plain.pop_back();
    *kind = Kind::kPointwise;
    return pointwise_names().count(plain) > 0;
}

} // namespace

bool is_replaced(const c10::OperatorHandle &handle)
{
    Kind kind;
    return find_kind(handle, &kind);
}

bool can_be_hollow(const at::Tensor &tensor)
{
    return is_large(tensor) && host.is_block(address(tensor));
}

void make_hollow(const at::Tensor &tensor) { host.make_hollow(address(tensor), span_bytes(tensor)); }

void replace_kernels()
{
    /* never unloaded: threads may call a kernel at any time */
    static auto *library =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    Silence silence; /* torch warns of replaced kernels */
    c10::WarningUtils::WarningHandlerGuard silent{&silence};
    for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
        auto handle = c10::Dispatcher::singleton().findSchema(name);
        Kind kind;
        if (!handle || !find_kind(*handle, &kind)) continue;
        std::string full = name.overload_name.empty() ? name.name
                                                      : name.name + "." + name.overload_name;
        library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                        std::make_unique<Skipping>(kind, *handle)));
    }
}

} // namespace phantora
