/* modules.cpp - says from which module of the model memory is allocated (`--memory-modules`).
 *
 * Why it exists: the allocator knows blocks and no modules. An operator of the forward pass runs in
 * the `forward` of a module, which Python's stack shows. An operator of the backward pass has no
 * such stack, but PyTorch gives it the number of the forward operator whose gradient it computes.
 *
 * Python is asked when an operator begins that no other operator encloses, so that it is the
 * innermost module's Python that called it. An autograd function in Python is no operator in this
 * sense: it may run modules. Only a watched job pays for this, and its clock stands still
 * meanwhile. */
#include "values/modules.h"

#include <ATen/record_function.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "base/protocol.gen.h"
#include "values/host_api.h"
#include "values/observe.h"
#include "values/steps.h"

namespace phantora
{
namespace
{

struct Place {
    int kind = PH_HOLDER_OTHER;
    uint32_t name = 0;
};

struct Level {
    const at::RecordFunction *function;
    Place place;
    bool is_operator;
    uint32_t before; /* what to go back to */
};
thread_local std::vector<Level> levels;

/* The modules of the last operators of forward passes, by thread and number. */
class Forwards
{
public:
    void put(uint64_t thread, int64_t number, uint32_t module)
    {
        std::lock_guard<std::mutex> hold(lock_);
        kept_[number % kKept] = {thread, number, module};
    }

    uint32_t find(uint64_t thread, int64_t number)
    {
        std::lock_guard<std::mutex> hold(lock_);
        const Entry &entry = kept_[number % kKept];
        return entry.thread == thread && entry.number == number ? entry.module : 0;
    }

private:
    static constexpr size_t kKept = 1 << 18;
    struct Entry {
        uint64_t thread = 0;
        int64_t number = -1;
        uint32_t module = 0;
    };
    std::mutex lock_;
    std::vector<Entry> kept_ = std::vector<Entry>(kKept);
};

Forwards &forwards()
{
    static auto *kept = new Forwards; /* threads may outlive static objects */
    return *kept;
}

bool begins(const char *name, const char *with)
{
    return std::strncmp(name, with, std::strlen(with)) == 0;
}

/* A range of FSDP2, "FSDP::all_gather (layers.0)"; without a name it has that of the range around
 * it. */
Place of_fsdp(const char *name, const Place &outer)
{
    const char *open = std::strchr(name, '('), *close = std::strrchr(name, ')');
    if (open && close && close > open)
        return {PH_HOLDER_FSDP, host.memory_name(std::string(open + 1, close).c_str())};
    return {PH_HOLDER_FSDP, outer.kind == PH_HOLDER_FSDP ? outer.name : 0};
}

bool in_backward(const Place &place)
{
    return place.kind == PH_HOLDER_BACKWARD || place.kind == PH_HOLDER_RECOMPUTED;
}

Place of_operator(const at::RecordFunction &function, const Level *outer)
{
    Place place = outer ? outer->place : Place{};
    bool known = outer && (outer->is_operator || place.kind == PH_HOLDER_UPDATE ||
                           place.kind == PH_HOLDER_FSDP);
    if (!known) {
        Paused paused;
        if (uint32_t module = host.memory_module())
            place = {in_backward(place) ? PH_HOLDER_RECOMPUTED : PH_HOLDER_FORWARD, module};
        else if (!place.name) /* the operator says at least what it is for */
            place.name = host.memory_name(function.name());
    }
    if (place.kind == PH_HOLDER_FORWARD || place.kind == PH_HOLDER_RECOMPUTED)
        if (function.seqNr() >= 0)
            forwards().put(function.threadId(), function.seqNr(), place.name);
    return place;
}

Place of_backward(const at::RecordFunction &function)
{
    uint32_t module = forwards().find(function.forwardThreadId(), function.seqNr());
    return {PH_HOLDER_BACKWARD, module ? module : host.memory_name(function.name())};
}

Place place_of(const at::RecordFunction &function, const Level *outer)
{
    const Place around = outer ? outer->place : Place{};
    switch (function.scope()) {
    case at::RecordScope::BACKWARD_FUNCTION: return of_backward(function);
    case at::RecordScope::USER_SCOPE:
        if (is_optimizer(function)) return {PH_HOLDER_UPDATE, 0};
        if (begins(function.name(), "FSDP::")) return of_fsdp(function.name(), around);
        return around;
    default: return of_operator(function, outer);
    }
}

std::unique_ptr<at::ObserverContext> on_place_start(const at::RecordFunction &function)
{
    try {
        const Level *outer = levels.empty() ? nullptr : &levels.back();
        bool is_operator = function.scope() == at::RecordScope::FUNCTION &&
                           std::strstr(function.name(), "::") != nullptr;
        Place place = place_of(function, outer);
        levels.push_back({&function, place, is_operator, 0});
        levels.back().before = host.memory_place(place.kind, place.name);
    } catch (const std::exception &) { /* no memory: its blocks count for what is around it */
    }
    return nullptr;
}

/* A step ends in steps.cpp. */
void on_place_end(const at::RecordFunction &function, at::ObserverContext *)
{
    size_t at = levels.size();
    while (at > 0 && levels[at - 1].function != &function) at--;
    if (at == 0) return; /* it began on another thread */
    host.memory_back(levels[at - 1].before);
    levels.resize(at - 1, {nullptr, {}, false, 0});
}

} // namespace

bool memory_watched() { return host.memory_watched && host.memory_watched(); }

bool start_modules()
{
    if (!memory_watched()) return true;
    return observe_everything(on_place_start, on_place_end);
}

} // namespace phantora
