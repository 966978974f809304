/* skip.cpp - CPU kernels that are skipped on large tensors of floats. See skip.h. */
#include "values/skip.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

enum class Kind { kDraw, kFill, kZero, kCopy, kPointwise, kJoin, kMembers };

/* What is not element-wise by its tag. */
const std::unordered_map<std::string, Kind> kKinds = {
    {"aten::normal_", Kind::kDraw},         {"aten::uniform_", Kind::kDraw},
    {"aten::exponential_", Kind::kDraw},    {"aten::log_normal_", Kind::kDraw},
    {"aten::cauchy_", Kind::kDraw},         {"aten::bernoulli_", Kind::kDraw},
    {"aten::fill_", Kind::kFill},           {"aten::zero_", Kind::kZero},
    {"aten::copy_", Kind::kCopy},           {"aten::cat", Kind::kJoin},
    {"aten::_fused_adam_", Kind::kMembers}, {"aten::_fused_adamw_", Kind::kMembers},
    {"aten::_fused_sgd_", Kind::kMembers},  {"aten::_fused_adagrad_", Kind::kMembers},
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
 * Measured with bench/values/host_operators.py on one thread of an AMD EPYC 9005 with torch 2.11.0.
 * Draws are serial in PyTorch, because they share a generator. All else is bound by memory, which
 * the ranks of a server share. */
constexpr double kDrawNs = 3, kNarrowNormalNs = 18; /* per element; of 16-bit floats */
constexpr double kThreadBytesPerNs = 30;            /* read and written by one thread */
constexpr double kRankBytesPerNs = 60;              /* by all threads of a rank */
constexpr double kFirstTouchNs = 0.45;              /* per byte of memory that was never written */

uint64_t bytes_of(const at::Tensor &tensor)
{
    return tensor.defined() ? static_cast<uint64_t>(tensor.numel()) * tensor.element_size() : 0;
}

struct Work {
    uint64_t drawn = 0, narrow_normal = 0; /* elements */
    uint64_t moved = 0, fresh = 0;         /* bytes */
};

void charge(const Work &work)
{
    double speed = std::min(at::get_num_threads() * kThreadBytesPerNs, kRankBytesPerNs);
    host.charge(static_cast<uint64_t>(static_cast<double>(work.drawn) * kDrawNs +
                                      static_cast<double>(work.narrow_normal) * kNarrowNormalNs +
                                      static_cast<double>(work.moved) / speed +
                                      static_cast<double>(work.fresh) * kFirstTouchNs));
}

void add_moved(Work &work, const c10::IValue &value)
{
    each_tensor(value, [&](const at::Tensor &tensor) { work.moved += bytes_of(tensor); });
}

void add_written(Work &work, const at::Tensor &tensor)
{
    work.moved += bytes_of(tensor);
    if (host.is_new(address(tensor), span_bytes(tensor))) work.fresh += bytes_of(tensor);
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
    /* a number may stay where it is; kernels ask a wrapped one for its value */
    if (!tensor.defined() || tensor.dim() == 0) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             tensor.options().device(c10::kMeta).pinned_memory(false));
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
        if (!host.hollows()) return plain_.callBoxed(handle, keys, stack); /* a forked child */
        if (any_tensor(arguments(*stack), is_large) && skip(handle, keys, *stack)) return;
        plain_.callBoxed(handle, keys, stack);
        for (const auto &result :
             c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - returns_))
            if (can_be_hollow(result.toTensor())) make_hollow(result.toTensor());
    }

private:
    c10::ArrayRef<c10::IValue> arguments(const torch::jit::Stack &stack) const
    {
        return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - arguments_);
    }

    bool skip(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack &stack)
    {
        if (kind_ == Kind::kMembers) return skip_members(handle, keys, stack);
        if (kind_ == Kind::kPointwise || kind_ == Kind::kJoin) return skip_by_shape(handle, stack);
        auto given = arguments(stack);
        at::Tensor self = given[0].toTensor();
        if (!can_be_hollow(self)) return false;
        Work work;
        if (kind_ == Kind::kDraw) {
            bool slow = self.element_size() < 4 && handle.schema().name() == "aten::normal_";
            (slow ? work.narrow_normal : work.drawn) = static_cast<uint64_t>(self.numel());
            advance(given);
        } else if (kind_ == Kind::kCopy) {
            const at::Tensor &from = given[1].toTensor();
            if (!from.is_cpu() || !is_plain(from) ||
                !at::is_expandable_to(from.sizes(), self.sizes()))
                return false;
            work.moved = bytes_of(from);
        }
        add_written(work, self);
        bool zero = kind_ == Kind::kZero ||
                    (kind_ == Kind::kFill && given[1].isScalar() && given[1].toScalar().equal(0));
        if (zero)
            host.clear(address(self), span_bytes(self));
        else
            make_hollow(self);
        charge(work);
        return_(stack, {self});
        return true;
    }

    /* Optimizers that are one operator: their large members are skipped, the others run. */
    bool skip_members(const c10::OperatorHandle &handle, c10::DispatchKeySet keys,
                      torch::jit::Stack &stack)
    {
        auto given = arguments(stack).vec();
        size_t members = given[0].toListRef().size();
        std::vector<bool> large(members, true);
        for (size_t argument : written_)
            if (given[argument].isTensorList() && given[argument].toListRef().size() == members)
                for (size_t i = 0; i < members; i++)
                    large[i] = large[i] && can_be_hollow(given[argument].toListRef()[i].toTensor());
        torch::jit::Stack others;
        Work work;
        for (size_t at = 0; at < given.size(); at++) {
            if (!given[at].isTensorList() || given[at].toListRef().size() != members) {
                others.push_back(given[at]);
                continue;
            }
            bool is_written = std::find(written_.begin(), written_.end(), at) != written_.end();
            c10::List<at::Tensor> kept;
            for (size_t i = 0; i < members; i++) {
                at::Tensor member = given[at].toListRef()[i].toTensor();
                if (!large[i]) kept.push_back(member);
                if (!large[i]) continue;
                work.moved += bytes_of(member);
                if (!is_written) continue;
                add_written(work, member);
                make_hollow(member);
            }
            others.emplace_back(kept);
        }
        charge(work);
        torch::jit::drop(stack, arguments_);
        if (std::find(large.begin(), large.end(), false) != large.end())
            plain_.callBoxed(handle, keys, &others);
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
        for (const auto &argument : given) meta.push_back(map_tensors(argument, on_meta));
        auto kept = meta; /* an operator may return what it drops */
        try {
            PlainCpu guard;
            handle.callBoxed(&meta);
        } catch (const std::exception &) {
            return false; /* the CPU's kernel will say what is wrong, or compute it */
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
        Work work;
        for (const auto &argument : given) add_moved(work, argument);
        for (const auto &result : results) {
            add_written(work, result);
            make_hollow(result);
        }
        charge(work);
        return_(stack, results);
        return true;
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
    auto found = kKinds.find(name);
    if (!own || (handle.schema().returns().empty() &&
                 !(found != kKinds.end() && found->second == Kind::kMembers)))
        return false;
    for (const auto &result : handle.schema().returns())
        if (result.type()->kind() != c10::TypeKind::TensorType ||
            (result.alias_info() && !result.alias_info()->isWrite()))
            return false;
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

void make_hollow(const at::Tensor &tensor)
{
    host.make_hollow(address(tensor), span_bytes(tensor));
}

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
        std::string full =
            name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        library->impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                        std::make_unique<Skipping>(kind, *handle)));
    }
}

} // namespace phantora
