/* operators.cpp - classifies operators by their schema and their kernels. See operators.h. */
#include "values/operators.h"

#include "values/skip.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace phantora
{
namespace
{

/* Operators with a CUDA kernel that must not be repeated: they change what a tensor is rather than
 * what it holds, or their effect is not a value. */
const std::unordered_set<std::string> kNeverRun = {
    "aten::set_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::_resize_output_",
    "aten::record_stream",
    "aten::_assert_async",
    "aten::rename_",
    "aten::_cudnn_init_dropout_state",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_cudnn_rnn_flatten_weight",
};

/* Operators whose kernels compute a number that the host reads back: the result, or its size. The
 * width is that of the copy (ATen's native/cuda/Nonzero.cu, UniqueCub.cu and Equal.cpp, 2.11).
 * Others (bincount, repeat_interleave, boolean masks) call operators that are observed themselves.
 */
const std::unordered_map<std::string, size_t> kReadBack = {
    {"aten::nonzero", sizeof(int)},
    {"aten::_unique", sizeof(int64_t)},
    {"aten::_unique2", sizeof(int64_t)},
    {"aten::equal", sizeof(bool)},
    {"aten::unique_consecutive", sizeof(int64_t)},
    {"aten::unique_dim", sizeof(int64_t)},
};

const std::unordered_map<std::string, Choice> kChoices = {
    {"aten::topk", Choice::kTopk},
    {"aten::topk.values", Choice::kTopk},
    {"aten::argmax", Choice::kExtreme},
    {"aten::argmax.out", Choice::kExtreme},
    {"aten::argmin", Choice::kExtreme},
    {"aten::argmin.out", Choice::kExtreme},
    {"aten::max.dim", Choice::kExtreme},
    {"aten::max.dim_max", Choice::kExtreme},
    {"aten::min.dim", Choice::kExtreme},
    {"aten::min.dim_min", Choice::kExtreme},
    {"aten::kthvalue", Choice::kExtreme},
    {"aten::kthvalue.values", Choice::kExtreme},
    {"aten::mode", Choice::kExtreme},
    {"aten::mode.values", Choice::kExtreme},
    {"aten::median.dim", Choice::kExtreme},
    {"aten::median.dim_values", Choice::kExtreme},
    {"aten::nanmedian.dim", Choice::kExtreme},
    {"aten::nanmedian.dim_values", Choice::kExtreme},
    {"aten::sort", Choice::kSort},
    {"aten::sort.stable", Choice::kSort},
    {"aten::sort.values", Choice::kSort},
    {"aten::sort.values_stable", Choice::kSort},
    {"aten::multinomial", Choice::kDraw},
    {"aten::multinomial.out", Choice::kDraw},
    {"aten::all", Choice::kAll},
    {"aten::all.dim", Choice::kAll},
    {"aten::all.dims", Choice::kAll},
    {"aten::all.all_out", Choice::kAll},
    {"aten::all.out", Choice::kAll},
    {"aten::all.dims_out", Choice::kAll},
    {"aten::histc", Choice::kCount},
    {"aten::histc.out", Choice::kCount},
    {"aten::bincount", Choice::kCount},
};

/* Operators that can turn floats into integers or booleans. */
const std::unordered_set<std::string> kCounting = {
    "aten::eq",          "aten::ne",           "aten::lt",
    "aten::le",          "aten::gt",           "aten::ge",
    "aten::isnan",       "aten::isinf",        "aten::isposinf",
    "aten::isneginf",    "aten::signbit",      "aten::logical_not",
    "aten::copy_",       "aten::nonzero",      "aten::count_nonzero",
    "aten::logical_and", "aten::logical_or",   "aten::logical_xor",
    "aten::bucketize",   "aten::searchsorted", "aten::_to_copy",
};

/* In addition to random in-place operators. */
const std::unordered_set<std::string> kOverwriting = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_"};

/* Operators on lists that treat each member independently (ATen's native/ForeachUtils.h,
 * native/AmpKernels.h, native/FusedAdam.h and similar, 2.11). What the members share are single
 * tensors and numbers. */
bool treats_members_alone(const std::string &name)
{
    for (const char *prefix : {"aten::_foreach_", "aten::_amp_foreach_", "aten::_fused_adam",
                               "aten::_fused_adagrad", "aten::_fused_sgd"})
        if (name.rfind(prefix, 0) == 0) return true;
    return false;
}

Treatment classify(const c10::OperatorHandle &handle, const std::string &name, bool substituted)
{
    const auto &schema = handle.schema();
    /* copy_ is the only composite operator that launches a kernel itself */
    bool own_kernel =
        name == "aten::copy_" || handle.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
    if (!own_kernel) return Treatment::kIgnore;
    if (name.rfind("aten::", 0) != 0) return Treatment::kEnclose;
    for (const auto &value : schema.returns())
        if (value.alias_info() && !value.alias_info()->isWrite())
            return Treatment::kIgnore; /* a view */
    if (name.rfind("aten::empty", 0) == 0) return Treatment::kAllocate;
    bool gives_tensors = schema.is_mutable();
    for (const auto &value : schema.returns())
        if (value.type()->kind() == c10::TypeKind::TensorType ||
            value.type()->kind() == c10::TypeKind::ListType)
            gives_tensors = true;
    if (!gives_tensors || kNeverRun.count(name)) return Treatment::kLaunch;
    return substituted || handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)
               ? Treatment::kRun
               : Treatment::kLaunch;
}

std::unique_ptr<Operator> describe(const c10::OperatorHandle &handle)
{
    const auto &schema = handle.schema();
    auto op = std::make_unique<Operator>(Operator{handle, schema.name(), schema.overload_name()});
    op->substitute = find_substitute(op->name, op->overload);
    op->treatment = classify(handle, op->name, op->substitute);
    op->random = handle.hasTag(at::Tag::nondeterministic_seeded);
    op->keeps = kNeverRun.count(op->name) > 0;
    op->copies = op->name == "aten::copy_";
    op->zeroes = op->name == "aten::zero_" || op->name == "aten::_foreach_zero_";
    op->overwrites = kOverwriting.count(op->name) > 0 || (op->random && op->name.back() == '_');
    op->counts = kCounting.count(op->name) > 0;
    op->memberwise = treats_members_alone(op->name);
    auto choice = kChoices.find(op->overload.empty() ? op->name : op->name + "." + op->overload);
    if (choice != kChoices.end()) op->choice = choice->second;
    op->softmax = op->name == "aten::_softmax" || op->name == "aten::_log_softmax";
    op->arguments = schema.arguments().size();
    op->returns = schema.returns().size();
    auto read_back = kReadBack.find(op->name);
    if (read_back != kReadBack.end()) op->read_back = read_back->second;
    for (size_t i = 0; i < op->arguments; i++) {
        const auto &argument = schema.arguments()[i];
        bool written = argument.alias_info() && argument.alias_info()->isWrite();
        op->written.push_back(written);
        op->out.push_back(argument.is_out());
        op->any_written |= written;
        op->any_out |= argument.is_out();
        if (argument.type()->str().rfind("Generator", 0) == 0) op->generator = static_cast<int>(i);
        if (argument.name() == "kernel_size" && op->name.find("_pool") != std::string::npos)
            op->window = static_cast<int>(i);
    }
    for (const auto &value : schema.returns()) op->fresh.push_back(!value.alias_info());
    op->random |= op->generator >= 0;
    op->replaced = is_replaced(handle);
    return op;
}

/* The registry of the process. Entries are never removed, so threads may keep pointers. */
const Operator *lookup(const c10::OperatorName &name)
{
    static std::mutex lock;
    static std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>> known;
    std::lock_guard<std::mutex> guard(lock);
    auto found = known.find(name);
    if (found != known.end()) return found->second.get();
    auto handle = c10::Dispatcher::singleton().findSchema(name);
    return known.emplace(name, handle ? describe(*handle) : nullptr).first->second.get();
}

struct Slot {
    const char *key;
    const Operator *op;
};
/* a job uses some hundred operators; a collision only costs a slow look-up */
constexpr size_t kSlots = 4096;
thread_local std::array<Slot, kSlots> slots{};

} // namespace

const Operator *find_operator(const at::RecordFunction &function)
{
    /* A schema's name keeps its address while it is registered. The text is compared too, because
     * another name may get the same address later. */
    const char *name = function.name();
    Slot &slot = slots[(reinterpret_cast<uintptr_t>(name) >> 4) % kSlots];
    if (slot.key == name && slot.op->name == name && slot.op->overload == function.overload_name())
        return slot.op;
    auto full_name = function.operator_name();
    if (!full_name) return nullptr;
    const Operator *op = lookup(*full_name);
    if (op) slot = {name, op};
    return op;
}

} // namespace phantora
