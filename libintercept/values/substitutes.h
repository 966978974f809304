/* substitutes.h - operators that only CUDA has, expressed with operators that the CPU has.
 *
 * Why it exists: on a GPU PyTorch uses cuDNN's convolutions and norms and fused attention, which
 * have no CPU kernels. Without these functions a small model that uses them would compute zeros. */
#ifndef PHANTORA_VALUES_SUBSTITUTES_H
#define PHANTORA_VALUES_SUBSTITUTES_H
#include <ATen/core/Generator.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace phantora
{

/* One call. The arguments are already CPU tensors, and are found by their names in the schema. */
struct Call {
    const c10::FunctionSchema &schema;
    c10::ArrayRef<c10::IValue> arguments;
    const std::optional<at::Generator> &generator;

    /* throws c10::Error when the schema has no such argument */
    const c10::IValue &operator[](const char *name) const;
    at::Tensor tensor(const char *name) const { return (*this)[name].toTensor(); }
    std::optional<at::Tensor> optional(const char *name) const;
};

/* Returns the operator's results in order. A result that is not a tensor, or has no value, may be
 * None. Throws what ATen throws. */
using Substitute = std::vector<c10::IValue> (*)(const Call &call);

/* By the operator's name and overload ("aten::mm", "dtype"); nullptr when there is none. */
Substitute find_substitute(const std::string &name, const std::string &overload);

} // namespace phantora
#endif
