/* choose.cpp - what --values balanced decides when only a GPU could know a result, and where a
 * recorded decision is written.
 *
 * Why it exists: a router's scores have no values here, and no real job sends every token to the
 * first k experts. An order among values that nothing computed is free: ties may be broken in any
 * way. So choices go round-robin: row r chooses the indices r k, r k + 1, ... r k + k - 1, modulo
 * their number, and every index is chosen equally often, to within one. The results are integers,
 * and integers have values. What the job derives from them (counts, permutations, masks, exchange
 * sizes) is computed from them, and so is consistent on one rank and across ranks. docs/values.md
 * is the contract. */
#include "values/choose.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <vector>

#include "values/host_api.h"
#include "values/run.h"
#include "values/tensors.h"

namespace phantora
{
namespace
{

using at::Tensor;

constexpr auto kLong = at::kLong;

/* Element (r, j) is the j-th choice of row r. Rows are the other dimensions, in order. */
Tensor round_robin(int64_t rows, int64_t size, int64_t count)
{
    return (at::arange(rows, kLong).mul_(count).unsqueeze(1) + at::arange(count, kLong))
        .remainder_(size);
}

/* The dimension along which the operator chooses, wrapped; -1 when there is none. */
int64_t dimension(const Operator &op, c10::ArrayRef<c10::IValue> inputs, const Tensor &self)
{
    const auto &arguments = op.handle.schema().arguments();
    for (size_t i = 0; i < arguments.size(); i++)
        if (arguments[i].name() == "dim") {
            if (inputs[i].isNone() || self.dim() == 0) return -1;
            int64_t dim = inputs[i].toInt();
            return dim < 0 ? dim + self.dim() : dim;
        }
    return self.dim() - 1;
}

/* `rows` (row, choice) in the shape of a result whose choices lie along `dim`. */
Tensor shaped(const Tensor &rows, const Tensor &self, int64_t dim, c10::IntArrayRef sizes)
{
    std::vector<int64_t> outer;
    for (int64_t i = 0; i < self.dim(); i++)
        if (i != dim) outer.push_back(self.size(i));
    outer.push_back(rows.size(1));
    return rows.reshape(outer).movedim(-1, dim).reshape(sizes);
}

void write(const Tensor &output, const Tensor &value)
{
    size_t bytes = span_bytes(output);
    host.before_read(address(output), bytes);
    host.mark_dirty(address(output), bytes);
    cpu_alias(output).copy_(value);
    mark(output, true); /* a choice is not a computed value */
}

bool writable(const Tensor &output)
{
    return on_device(output) && size_of(output) == Size::kSmall && output.numel() > 0;
}

/* For each row, `count` of its candidates, round-robin by row. Rows with fewer candidates keep
 * `otherwise`. */
Tensor among(const Tensor &candidates, const Tensor &otherwise, int64_t count)
{
    int64_t rows = candidates.size(0), size = candidates.size(1);
    Tensor number = candidates.sum(1, true), rank = candidates.cumsum(1) - 1,
           safe = number.clamp_min(1);
    /* Masks may leave each row only a share of the indices. Then that many consecutive rows start
     * at the same candidate: their masks differ. */
    Tensor turn = at::arange(rows, kLong)
                      .unsqueeze(1)
                      .floor_divide(at::full_like(safe, size).floor_divide(safe).clamp_min(1));
    Tensor order =
        (rank - turn.mul(count)).remainder(safe).masked_fill(candidates.logical_not(), size);
    Tensor chosen = std::get<1>(order.topk(count, 1, /*largest=*/false, /*sorted=*/true));
    return at::where(number >= count, chosen, otherwise);
}

Tensor rows_of(const Tensor &tensor, int64_t dim)
{
    return tensor.movedim(dim, -1).reshape({-1, tensor.size(dim)});
}

bool choose_top(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    const Tensor &self = inputs[0].toTensor(), &indices = outputs[1].toTensor();
    int64_t dim = dimension(op, inputs, self), count = inputs[1].toInt();
    if (dim < 0 || !writable(indices) || count == 0) return false;
    int64_t size = self.size(dim), rows = self.numel() / size;
    if (!ran) {
        write(indices, shaped(round_robin(rows, size, count), self, dim, indices.sizes()));
        return true;
    }
    Tensor scores = rows_of(cpu_alias(self), dim), before = rows_of(cpu_alias(indices), dim);
    Tensor chosen = among(scores != (inputs[3].toBool() ? -INFINITY : INFINITY), before, count);
    write(indices, shaped(chosen, self, dim, indices.sizes()));
    if (writable(outputs[0].toTensor()))
        write(outputs[0].toTensor(), shaped(scores.gather(1, chosen), self, dim, indices.sizes()));
    return true;
}

bool choose_extreme(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                    c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    const Tensor &self = inputs[0].toTensor(), &indices = outputs[outputs.size() - 1].toTensor();
    int64_t dim = dimension(op, inputs, self);
    if (dim < 0 || !writable(indices)) return false;
    int64_t size = self.size(dim), rows = self.numel() / size;
    if (!ran) {
        write(indices, shaped(round_robin(rows, size, 1), self, dim, indices.sizes()));
        return true;
    }
    /* The value stays. Its index becomes one of those that hold an equal value. */
    Tensor values = rows_of(cpu_alias(self), dim);
    bool kept = indices.dim() == self.dim();
    Tensor before = rows_of(kept ? cpu_alias(indices) : cpu_alias(indices).unsqueeze(dim), dim);
    write(indices,
          shaped(among(values == values.gather(1, before), before, 1), self, dim, indices.sizes()));
    return true;
}

bool choose_order(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
                  c10::ArrayRef<c10::IValue> outputs)
{
    const Tensor &self = inputs[0].toTensor(), &indices = outputs[1].toTensor();
    int64_t dim = dimension(op, inputs, self);
    if (dim < 0 || !writable(indices)) return false;
    std::vector<int64_t> shape(static_cast<size_t>(self.dim()), 1);
    shape[static_cast<size_t>(dim)] = self.size(dim);
    write(indices, at::arange(self.size(dim), kLong).reshape(shape).expand(indices.sizes()));
    return true;
}

bool choose_draw(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs)
{
    const Tensor &self = inputs[0].toTensor(), &drawn = outputs[0].toTensor();
    if (!writable(drawn)) return false;
    int64_t size = self.size(-1);
    write(drawn, round_robin(self.numel() / size, size, inputs[1].toInt()).reshape(drawn.sizes()));
    return true;
}

/* The elements have no values, so they are spread evenly over the bins. */
bool choose_counts(c10::ArrayRef<c10::IValue> inputs, c10::ArrayRef<c10::IValue> outputs)
{
    const Tensor &counts_ = outputs[0].toTensor();
    if (!writable(counts_)) return false;
    int64_t bins = counts_.numel(), elements = inputs[0].toTensor().numel();
    write(counts_, (at::arange(bins, kLong) < elements % bins)
                       .to(kLong)
                       .add_(elements / bins)
                       .reshape(counts_.sizes()));
    return true;
}

} // namespace

template <class Bits>
static bool any_exponent_full(const void *bytes, size_t count, Bits exponent)
{
    const auto *at = static_cast<const Bits *>(bytes);
    for (size_t i = 0; i < count; i++)
        if ((at[i] & exponent) == exponent) return true;
    return false;
}

/* Also looks at the gaps between elements. At worst a value then stays as it is. */
bool non_finite(const Tensor &tensor, const void *bytes)
{
    size_t count = span_bytes(tensor) / tensor.element_size();
    switch (tensor.scalar_type()) {
    case at::kFloat: return any_exponent_full<uint32_t>(bytes, count, 0x7f800000);
    case at::kBFloat16: return any_exponent_full<uint16_t>(bytes, count, 0x7f80);
    case at::kHalf: return any_exponent_full<uint16_t>(bytes, count, 0x7c00);
    case at::kDouble: return any_exponent_full<uint64_t>(bytes, count, 0x7ff0000000000000);
    default: return false;
    }
}

void make_finite(const Tensor &tensor)
{
    PlainCpu plain;
    cpu_alias(tensor).nan_to_num_(0.0, 0.0, 0.0);
}

bool to_be_chosen(const Operator &op, c10::ArrayRef<c10::IValue> inputs)
{
    if (!host.balanced || op.choice == Choice::kNone || !inputs[0].isTensor()) return false;
    const Tensor &self = inputs[0].toTensor();
    if (!on_device(self) || self.numel() == 0 || size_of(self) == Size::kOpaque) return false;
    /* Integers that have values are exact, or were chosen earlier. */
    if (op.choice == Choice::kAll) return self.scalar_type() == at::kBool;
    return op.choice == Choice::kCount ||
           (self.is_floating_point() && (size_of(self) == Size::kLarge || any_undefined(self)));
}

bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran, const Tensor &given)
{
    PlainCpu plain;
    bool first = outputs.size() == 1 || op.choice == Choice::kCount;
    const Tensor &choice = outputs[first ? 0 : outputs.size() - 1].toTensor();
    /* a small tensor that was sorted keeps its order */
    if (!writable(choice) || (op.choice == Choice::kSort && ran)) return false;
    write(choice, given);
    mark(choice, false); /* a GPU computed it */
    if (!ran || (op.choice != Choice::kTopk && op.choice != Choice::kExtreme) || first) return true;
    /* The values are those at the chosen indices. */
    const Tensor &self = inputs[0].toTensor(), &values = outputs[0].toTensor();
    int64_t dim = dimension(op, inputs, self);
    if (dim < 0 || !writable(values)) return true;
    bool kept = choice.dim() == self.dim();
    Tensor index = kept ? given.to(kLong) : given.to(kLong).unsqueeze(dim),
           found = cpu_alias(self).gather(dim, index);
    write(values, kept ? found : found.squeeze(dim));
    return true;
}

bool choose(const Operator &op, c10::ArrayRef<c10::IValue> inputs,
            c10::ArrayRef<c10::IValue> outputs, bool ran)
{
    PlainCpu plain;
    switch (op.choice) {
    case Choice::kTopk: return choose_top(op, inputs, outputs, ran);
    case Choice::kExtreme: return choose_extreme(op, inputs, outputs, ran);
    case Choice::kSort: return !ran && choose_order(op, inputs, outputs);
    case Choice::kDraw: return !ran && choose_draw(inputs, outputs);
    case Choice::kCount: return !ran && choose_counts(inputs, outputs);
    case Choice::kAll:
        if (ran || !writable(outputs[0].toTensor())) return false;
        write(outputs[0].toTensor(), at::ones({}, at::kBool).expand(outputs[0].toTensor().sizes()));
        return true;
    case Choice::kNone: break;
    }
    return false;
}

} // namespace phantora
