/* members.h - list operators on both small and large tensors.
 *
 * Why it exists: optimizers, norms and loss scalers pass all parameters to one operator, which
 * treats each member of its lists independently. So the results of the small members can be
 * computed although the large ones have no values: a NaN in the gradient of a bias is seen. */
#ifndef PHANTORA_VALUES_MEMBERS_H
#define PHANTORA_VALUES_MEMBERS_H
#include <ATen/core/ivalue.h>

#include <vector>

namespace phantora
{

/* The members of an operator's lists, by their indices. */
struct Members {
    size_t count = 0; /* how long the lists are */
    std::vector<size_t> small, others;

    bool mixed() const { return !small.empty() && !others.empty(); }
    void clear() { count = 0, small.clear(), others.clear(); }
};

/* Finds the members that are small in every list. None when a single argument is large, or lists
 * differ in length. Only tensors up to kSmallBytes count as small, so device memory is not read. */
void find_members(Members &members, c10::ArrayRef<c10::IValue> inputs);

/* `values` with only the small members in every list. What is not a list of members stays. */
std::vector<c10::IValue> take_small(c10::ArrayRef<c10::IValue> values, const Members &members);

/* The lists with only the other members. What is not a list of members becomes None: it belongs to
 * the small ones. */
std::vector<c10::IValue> take_others(c10::ArrayRef<c10::IValue> values, const Members &members);

} // namespace phantora
#endif
