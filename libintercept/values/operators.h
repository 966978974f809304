/* operators.h - what is known of an operator without its arguments.
 *
 * Why it exists: the callback runs for every operator of the job, most of them on large tensors.
 * What depends on the operator alone is worked out once and found again by the address of its name.
 */
#ifndef PHANTORA_VALUES_OPERATORS_H
#define PHANTORA_VALUES_OPERATORS_H
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "values/substitutes.h"

namespace phantora
{

enum class Treatment {
    kIgnore,   /* no kernel of its own (its inner operators are observed themselves), or a view */
    kEnclose,  /* not of aten: launches kernels of which nothing more is known */
    kAllocate, /* makes uninitialised memory: small outputs are zeroed, so that runs repeat */
    kLaunch, /* launches kernels but is never run here: it has no CPU kernel, or an effect that must
                not be repeated */
    kRun,
};

/* What an operator decides by an order among values that large tensors do not have: choose.h. */
enum class Choice {
    kNone,
    kTopk,
    kExtreme, /* the index of one element: argmax, max, median, ... */
    kSort,
    kDraw, /* multinomial */
    kAll,
    kCount /* histc, bincount */
};

struct Operator {
    c10::OperatorHandle handle;
    std::string name, overload; /* "aten::add", "Tensor" */
    Treatment treatment = Treatment::kIgnore;
    Substitute substitute = nullptr; /* run instead of the operator */
    bool random = false;             /* draws from a generator */
    int generator = -1;              /* index of the Generator argument, -1: none */
    int window = -1; /* of a pooling operator: index of its window's sizes, which no tensor shows */
    bool keeps = false;      /* its results keep their contents: it changes what a tensor is */
    bool zeroes = false;     /* zeroes its arguments, of any size */
    bool overwrites = false; /* the old contents of its arguments do not affect the new */
    /* turns floats into integers or booleans, element by element or by counting */
    bool counts = false;
    Choice choice = Choice::kNone;
    bool memberwise = false; /* takes lists, and treats each member independently */
    /* copy_, which can also carry the values of large tensors */
    bool copies = false;
    /* has a "half to float" flag that CPU kernels refuse (_softmax, _log_softmax) */
    bool softmax = false;
    /* bytes of a number that its kernel computes and the host reads: the result or its size */
    size_t read_back = 0;
    std::vector<bool> written{}; /* per argument: written to */
    std::vector<bool> out{};     /* per argument: written to and never read */
    bool any_written = false, any_out = false;
    bool replaced = false;     /* skip.cpp decides whether its CPU kernel runs */
    std::vector<bool> fresh{}; /* per return: a new tensor rather than a written argument */
    size_t arguments = 0, returns = 0;
};

/* The operator that `function` records, or nullptr when it is not one (a user's range, an autograd
 * function). Operators are never freed. Thread-safe. A hit costs one probe of a thread-local table
 * and two string comparisons. */
const Operator *find_operator(const at::RecordFunction &function);

} // namespace phantora
#endif
