/* members.h - list operators on small tensors beside large ones.
 *
 * Why it exists: optimizers, norms and loss scalers hand all parameters to one operator. It treats
 * each member of its lists by itself, so what it makes of the small ones can be computed, though
 * the large ones have no values: a NaN in the gradient of a bias is seen. */
#ifndef PHANTORA_VALUES_MEMBERS_H
#define PHANTORA_VALUES_MEMBERS_H
#include <ATen/core/ivalue.h>

#include <vector>

namespace phantora
{

/* The members of an operator's lists, by their places. */
struct Members {
    size_t count = 0; /* how long the lists are */
    std::vector<size_t> small, others;

    bool mixed() const { return !small.empty() && !others.empty(); }
    void clear() { count = 0, small.clear(), others.clear(); }
};

/* Finds the members that are small in every list. None when a single argument is large, or lists
 * are of several lengths. Only tensors up to kSmallBytes count as small: device memory is not
 * looked at. */
void find_members(Members &members, c10::ArrayRef<c10::IValue> inputs);

/* `values` with the small members alone in every list; what is no list of members stays. */
std::vector<c10::IValue> take_small(c10::ArrayRef<c10::IValue> values, const Members &members);

/* The lists with the other members alone; None for what is no list of members: it goes with the
 * small ones. */
std::vector<c10::IValue> take_others(c10::ArrayRef<c10::IValue> values, const Members &members);

} // namespace phantora
#endif
