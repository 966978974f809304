/* frame.h - what is kept of an operator between its start and its end.
 *
 * Why it exists: whether an operator can be run shows in its arguments, and its kernel may change
 * them: both are looked at while they are as they were. What is done with a frame at the operator's
 * end is in results.h. */
#ifndef PHANTORA_VALUES_FRAME_H
#define PHANTORA_VALUES_FRAME_H
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "values/members.h"
#include "values/operators.h"

namespace phantora
{

struct Saved {
    void *address;
    std::vector<char> bytes;
};

/* One operator between its start and its end. */
struct Frame {
    const at::RecordFunction *function = nullptr;
    const Operator *op = nullptr;
    int exceptions = 0;
    /* every argument is small, or so are some members of its lists: */
    bool runnable = false;
    Members members;
    /* it would be, but for large floats that read as zero: runs if it gives integers */
    bool countable = false;
    bool chosen = false; /* the policy decides its results */
    /* what a GPU is asked by it (replay.h), where that is recorded or replayed */
    std::string question;
    /* of a runnable operator: an argument holds what nothing computed */
    bool unknown = false;
    /* into a CUDA graph: nothing is read or computed now (capture.h) */
    bool captured = false;
    /* `saved` of a captured one, filled at each launch */
    std::shared_ptr<std::vector<Saved>> at_launch;
    bool inner_wrote = false;
    std::vector<c10::IValue> inputs; /* what an operator may be run on, or chooses among */
    /* of an operator that gives nothing back: what it writes to */
    std::vector<c10::IValue> changed;
    std::vector<c10::IValue> outs;    /* its out= arguments */
    std::vector<Saved> saved;         /* of a runnable operator: what it may change */
    std::vector<const void *> filled; /* tensors that inner operators have given values */
    std::optional<at::Generator> generator;
    uint64_t input_bytes = 0;
    std::vector<int64_t> dims;
    std::vector<uint32_t> ranks;

    void reset();
    void announce() const; /* to the interceptor: the launches from here on are this operator's */
};

/* What a look at the arguments tells. */
struct Scan {
    bool device = false, small = true, countable = true;
};

/* Looks at the arguments, and keeps of them what the estimators are told. */
Scan scan(Frame &frame, c10::ArrayRef<c10::IValue> inputs);

/* Whether `op` reads an argument that holds what nothing computed. What is owed to it must have
 * been settled. */
bool reads_unknown(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* Keeps what the end needs of an operator that is to be run on `inputs`. */
void prepare(Frame &frame, c10::ArrayRef<c10::IValue> inputs);

} // namespace phantora
#endif
