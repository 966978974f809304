/* frame.h - the state of an operator between its start and its end.
 *
 * Why it exists: an operator's arguments tell whether it can be run, and its kernel may change
 * them. So they are examined and saved at its start. results.h says what happens to a frame at the
 * operator's end. */
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
    /* every argument is small, or some members of its lists are */
    bool runnable = false;
    Members members;
    /* not runnable only because of large floats that read as zero; runs if it returns integers */
    bool countable = false;
    bool chosen = false; /* the policy decides its results */
    /* the replay key (replay.h), where values are recorded or replayed */
    std::string replay_key;
    /* of a runnable operator: an argument has undefined bytes */
    bool undefined = false;
    /* into a CUDA graph: nothing is read or computed now (capture.h) */
    bool captured = false;
    /* `saved` of a captured operator, filled at each launch */
    std::shared_ptr<std::vector<Saved>> at_launch;
    bool inner_wrote = false;
    std::vector<c10::IValue> inputs; /* the arguments to run on, or to choose among */
    /* of an operator without results: what it writes to */
    std::vector<c10::IValue> changed;
    std::vector<c10::IValue> outs;    /* its out= arguments */
    std::vector<Saved> saved;         /* of a runnable operator: what it may change */
    std::vector<const void *> filled; /* tensors to which inner operators have given values */
    std::optional<at::Generator> generator;
    uint64_t input_bytes = 0;
    std::vector<int64_t> dims;
    std::vector<uint32_t> ranks;

    void reset();
    void announce()
        const; /* tells the interceptor that the launches from here on are this operator's */
};

/* What the arguments tell about an operator. */
struct Scan {
    bool device = false, small = true, countable = true;
};

/* Examines the arguments, and keeps what the estimators need of them. */
Scan scan(Frame &frame, c10::ArrayRef<c10::IValue> inputs);

/* Whether `op` reads an argument with undefined bytes. Pending results must have been settled. */
bool reads_undefined(const Operator &op, c10::ArrayRef<c10::IValue> inputs);

/* Keeps what the end of an operator that will run on `inputs` needs. */
void prepare(Frame &frame, c10::ArrayRef<c10::IValue> inputs);

} // namespace phantora
#endif
