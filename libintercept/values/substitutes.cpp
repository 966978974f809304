/* substitutes.cpp - see substitutes.h. Each function follows the operator's definition in ATen's
 * native_functions.yaml and derivatives (2.11) and computes plainly in float: small tensors need no
 * fast kernels. */
#include "values/substitutes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <array>
#include <unordered_map>

namespace phantora
{

const c10::IValue &Call::operator[](const char *name) const
{
    for (size_t i = 0; i < arguments.size(); i++)
        if (schema.arguments()[i].name() == name) return arguments[i];
    TORCH_CHECK(false, schema.name(), " has no argument ", name);
}

std::optional<at::Tensor> Call::optional(const char *name) const
{
    const c10::IValue &value = (*this)[name];
    return value.isTensor() && value.toTensor().defined() ? std::optional(value.toTensor())
                                                          : std::nullopt;
}

namespace
{

using Results = std::vector<c10::IValue>;
using at::Tensor;

Tensor wide(const Tensor &tensor)
{
    return c10::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

Results three(const std::tuple<Tensor, Tensor, Tensor> &results)
{
    return {std::get<0>(results), std::get<1>(results), std::get<2>(results)};
}

/* ---- convolutions ---- */
Tensor convolve(const Call &call, bool transposed = false)
{
    Tensor input = call.tensor("self");
    auto stride = call["stride"].toIntVector();
    std::vector<int64_t> output_padding(stride.size(), 0);
    if (transposed) output_padding = call["output_padding"].toIntVector();
    std::optional<Tensor> bias;
    int64_t groups = 0;
    for (const auto &argument : call.schema.arguments()) {
        if (argument.name() == "bias") bias = call.optional("bias");
        if (argument.name() == "groups") groups = call["groups"].toInt();
    }
    if (!groups) groups = input.size(1); /* depthwise: one filter per channel */
    if (bias) bias = wide(*bias);
    return at::convolution(wide(input), wide(call.tensor("weight")), bias, stride,
                           call["padding"].toIntVector(), call["dilation"].toIntVector(),
                           transposed, output_padding, groups);
}

Results convolution(const Call &call) { return {convolve(call)}; }
Results transposed_convolution(const Call &call) { return {convolve(call, true)}; }
Results convolution_relu(const Call &call) { return {convolve(call).relu()}; }
Results convolution_add_relu(const Call &call)
{
    const c10::IValue &alpha = call["alpha"];
    return {convolve(call)
                .add(wide(call.tensor("z")), alpha.isNone() ? c10::Scalar(1) : alpha.toScalar())
                .relu()};
}

/* ---- normalisation ---- */
Results batch_norm(const Call &call)
{
    auto results = at::native_batch_norm(
        call.tensor("input"), call.tensor("weight"), call.optional("bias"),
        call.optional("running_mean"), call.optional("running_var"), call["training"].toBool(),
        call["exponential_average_factor"].toDouble(), call["epsilon"].toDouble());
    return {std::get<0>(results), std::get<1>(results), std::get<2>(results), {}};
}

Results batch_norm_backward(const Call &call)
{
    return three(at::native_batch_norm_backward(
        call.tensor("grad_output"), call.tensor("input"), call.tensor("weight"),
        call.optional("running_mean"), call.optional("running_var"), call.optional("save_mean"),
        call.optional("save_var"), true, call["epsilon"].toDouble(), {true, true, true}));
}

/* Synchronised batch norm comes in steps: statistics of one rank's part, statistics of all parts,
 * and their use. */
std::vector<int64_t> all_but_channels(const Tensor &tensor)
{
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < tensor.dim(); i++)
        if (i != 1) axes.push_back(i);
    return axes;
}

Tensor by_channel(const Tensor &values, const Tensor &like)
{
    std::vector<int64_t> shape(like.dim(), 1);
    shape[1] = -1;
    return wide(values).reshape(shape);
}

Results batch_norm_stats(const Call &call)
{
    Tensor input = wide(call.tensor("input"));
    auto axes = all_but_channels(input);
    return {input.mean(axes), input.var(axes, false).add(call["eps"].toDouble()).rsqrt()};
}

Results batch_norm_gather_stats(const Call &call)
{
    Tensor mean = wide(call.tensor("mean")), counts;
    if (call.schema.name() == "aten::batch_norm_gather_stats_with_counts")
        counts = call.tensor("counts").to(mean.scalar_type());
    else
        counts = at::full({mean.size(0)}, call["count"].toInt(), mean.options());
    double eps = call["eps"].toDouble(), momentum = call["momentum"].toDouble();
    Tensor share = counts.reshape({-1, 1}) / counts.sum();
    Tensor all = (mean * share).sum(0);
    Tensor variance = ((call.tensor("invstd").pow(-2) - eps + (mean - all).pow(2)) * share).sum(0);
    if (auto running = call.optional("running_mean"))
        running->mul_(1 - momentum).add_(all, momentum);
    if (auto running = call.optional("running_var"))
        running->mul_(1 - momentum).add_(variance * (counts.sum() / (counts.sum() - 1)), momentum);
    return {all, (variance + eps).rsqrt()};
}

Results batch_norm_elemt(const Call &call)
{
    Tensor input = wide(call.tensor("input"));
    Tensor result =
        (input - by_channel(call.tensor("mean"), input)) * by_channel(call.tensor("invstd"), input);
    if (auto weight = call.optional("weight")) result = result * by_channel(*weight, input);
    if (auto bias = call.optional("bias")) result = result + by_channel(*bias, input);
    return {result};
}

Results batch_norm_backward_reduce(const Call &call)
{
    Tensor input = wide(call.tensor("input")), gradient = wide(call.tensor("grad_out"));
    auto axes = all_but_channels(input);
    Tensor sum = gradient.sum(axes),
           product = (gradient * (input - by_channel(call.tensor("mean"), input))).sum(axes);
    return {sum, product, product * call.tensor("invstd"), sum};
}

Results batch_norm_backward_elemt(const Call &call)
{
    Tensor input = wide(call.tensor("input")), gradient = wide(call.tensor("grad_out"));
    Tensor count = call.tensor("count").sum().to(input.scalar_type()),
           scale = by_channel(call.tensor("invstd"), input);
    Tensor centred = input - by_channel(call.tensor("mean"), input);
    Tensor result = gradient - by_channel(call.tensor("sum_dy"), input) / count -
                    centred * scale.pow(2) * by_channel(call.tensor("sum_dy_xmu"), input) / count;
    result = result * scale;
    if (auto weight = call.optional("weight")) result = result * by_channel(*weight, input);
    return {result};
}

/* The GPU keeps layer norm's statistics of 16-bit tensors in float. The CPU's forward pass rounds
 * them, and its backward pass refuses float ones. */
std::optional<Tensor> wide(const std::optional<Tensor> &tensor)
{
    return tensor ? std::optional(wide(*tensor)) : std::nullopt;
}

Results layer_norm(const Call &call)
{
    return three(at::native_layer_norm(
        wide(call.tensor("input")), call["normalized_shape"].toIntVector(),
        wide(call.optional("weight")), wide(call.optional("bias")), call["eps"].toDouble()));
}

Results layer_norm_backward(const Call &call)
{
    auto mask = call["output_mask"].toBoolList();
    return three(at::native_layer_norm_backward(
        wide(call.tensor("grad_out")), wide(call.tensor("input")),
        call["normalized_shape"].toIntVector(), wide(call.tensor("mean")),
        wide(call.tensor("rstd")), wide(call.optional("weight")), wide(call.optional("bias")),
        {mask[0], mask[1], mask[2]}));
}

Results rms_norm_backward(const Call &call)
{
    Tensor input = wide(call.tensor("input")), gradient = wide(call.tensor("grad_out")),
           scale = wide(call.tensor("rstd"));
    Tensor normal = input * scale, weighted = gradient;
    auto shape = call["normalized_shape"].toIntVector();
    std::vector<int64_t> inner, outer;
    for (int64_t i = 0; i < input.dim(); i++)
        (i < input.dim() - static_cast<int64_t>(shape.size()) ? outer : inner).push_back(i);
    Tensor weight_gradient;
    if (auto weight = call.optional("weight")) {
        weighted = gradient * wide(*weight);
        weight_gradient = outer.empty() ? gradient * normal : (gradient * normal).sum(outer);
    }
    return {scale * (weighted - normal * (weighted * normal).mean(inner, true)), weight_gradient};
}

/* ---- attention ---- */
struct Attention {
    Tensor query, key, value, scores, chances; /* key and value repeated for grouped queries */
    double scale;
    int64_t group;

    explicit Attention(const Call &call)
        : query(wide(call.tensor("query"))), key(wide(call.tensor("key"))),
          value(wide(call.tensor("value")))
    {
        TORCH_CHECK(call["dropout_p"].toDouble() == 0, "attention with dropout has no values");
        scale = call["scale"].isNone() ? 1 / std::sqrt(static_cast<double>(query.size(-1)))
                                       : call["scale"].toDouble();
        group = query.size(1) / key.size(1);
        if (group > 1)
            key = key.repeat_interleave(group, 1), value = value.repeat_interleave(group, 1);
        scores = query.matmul(key.transpose(-2, -1)) * scale;
        for (const auto &argument : call.schema.arguments())
            if (argument.name() == "attn_bias")
                if (auto bias = call.optional("attn_bias")) scores = scores + wide(*bias);
        if (call["is_causal"].toBool())
            scores = scores.masked_fill(
                at::ones({scores.size(-2), scores.size(-1)}, at::kBool).triu(1), -INFINITY);
        chances = scores.softmax(-1);
    }

    Tensor ungrouped(const Tensor &gradient) const
    {
        return group > 1 ? gradient.unflatten(1, {-1, group}).sum(2) : gradient;
    }
};

Results attention(const Call &call)
{
    Attention one(call);
    Results results(call.schema.returns().size());
    results[0] = one.chances.matmul(one.value);
    results[1] = one.scores.logsumexp(-1);
    return results;
}

Results attention_backward(const Call &call)
{
    Attention one(call);
    bool efficient = call.schema.name() == "aten::_scaled_dot_product_efficient_attention_backward";
    Tensor gradient = wide(call.tensor(efficient ? "grad_out_" : "grad_out"));
    Tensor by_chance = gradient.matmul(one.value.transpose(-2, -1));
    Tensor by_score = one.chances * (by_chance - (by_chance * one.chances).sum(-1, true));
    Results results(call.schema.returns().size());
    results[0] = by_score.matmul(one.key) * one.scale;
    results[1] = one.ungrouped(by_score.transpose(-2, -1).matmul(one.query) * one.scale);
    results[2] = one.ungrouped(one.chances.transpose(-2, -1).matmul(gradient));
    if (efficient)
        if (auto bias = call.optional("attn_bias"))
            results[3] = by_score.sum_to_size(bias->sizes());
    return results;
}

/* ---- the rest ---- */
Results dropout(const Call &call)
{
    Tensor input = call.tensor("input");
    const c10::IValue &train = call["train"];
    double rate = call["p"].toDouble();
    if (!train.isNone() && !train.toBool())
        return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
    Tensor kept = at::empty(input.sizes(), input.options().dtype(at::kFloat))
                      .bernoulli_(1 - rate, call.generator)
                      .to(at::kBool);
    return {rate == 1 ? at::zeros_like(input)
                      : (wide(input) * kept / (1 - rate)).to(input.scalar_type()),
            kept};
}

/* The CPU's histc takes floats only. Integers are binned as on the GPU: ATen's
 * native/cuda/SummaryOps.cu, getBin. */
Results histogram(const Call &call)
{
    Tensor self = call.tensor("self");
    int64_t bins = call["bins"].toInt();
    if (!c10::isIntegralType(self.scalar_type(), false))
        return {at::histc(wide(self), bins, call["min"].toScalar(), call["max"].toScalar())
                    .to(self.scalar_type())};
    int64_t low = call["min"].toScalar().toLong(), high = call["max"].toScalar().toLong();
    Tensor values = self.reshape(-1).to(at::kLong);
    if (low == high && values.numel())
        low = values.min().item<int64_t>(), high = values.max().item<int64_t>();
    if (low == high) low--, high++;
    values = values.masked_select((values >= low).logical_and(values <= high));
    Tensor bin = (values - low).mul(bins).floor_divide(high - low).clamp_max(bins - 1);
    return {at::bincount(bin, {}, bins).to(self.scalar_type())};
}

/* CUDA's backward pass can read float gradients and return 16-bit ones; the CPU's cannot. */
template <Tensor (&Backward)(const Tensor &, const Tensor &, int64_t, at::ScalarType)>
Results softmax_backward(const Call &call)
{
    Tensor gradient = call.tensor("grad_output");
    return {Backward(gradient, call.tensor("output"), call["dim"].toInt(), gradient.scalar_type())
                .to(call["input_dtype"].toScalarType())};
}

Results product(const Call &call)
{
    auto type = call["out_dtype"].toScalarType();
    return {call.tensor("self").to(type).matmul(call.tensor("mat2").to(type))};
}

const std::unordered_map<std::string, Substitute> kSubstitutes = {
    {"aten::histc", histogram},
    {"aten::cudnn_convolution", convolution},
    {"aten::cudnn_convolution_transpose", transposed_convolution},
    {"aten::cudnn_convolution_relu", convolution_relu},
    {"aten::cudnn_convolution_add_relu", convolution_add_relu},
    {"aten::_conv_depthwise2d", convolution},
    {"aten::conv_depthwise3d", convolution},
    {"aten::cudnn_batch_norm", batch_norm},
    {"aten::cudnn_batch_norm_backward", batch_norm_backward},
    {"aten::batch_norm_stats", batch_norm_stats},
    {"aten::batch_norm_gather_stats", batch_norm_gather_stats},
    {"aten::batch_norm_gather_stats_with_counts", batch_norm_gather_stats},
    {"aten::batch_norm_elemt", batch_norm_elemt},
    {"aten::batch_norm_backward_reduce", batch_norm_backward_reduce},
    {"aten::batch_norm_backward_elemt", batch_norm_backward_elemt},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::_fused_rms_norm_backward", rms_norm_backward},
    {"aten::_scaled_dot_product_flash_attention", attention},
    {"aten::_scaled_dot_product_efficient_attention", attention},
    {"aten::_scaled_dot_product_cudnn_attention", attention},
    {"aten::_scaled_dot_product_flash_attention_backward", attention_backward},
    {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward},
    {"aten::_scaled_dot_product_cudnn_attention_backward", attention_backward},
    {"aten::native_dropout", dropout},
    {"aten::_softmax_backward_data", softmax_backward<at::_softmax_backward_data>},
    {"aten::_log_softmax_backward_data", softmax_backward<at::_log_softmax_backward_data>},
    {"aten::mm.dtype", product},
    {"aten::bmm.dtype", product},
};

} // namespace

Substitute find_substitute(const std::string &name, const std::string &overload)
{
    auto found = kSubstitutes.find(overload.empty() ? name : name + "." + overload);
    return found == kSubstitutes.end() ? nullptr : found->second;
}

} // namespace phantora
