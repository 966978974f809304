/* work/accesses.c - counts loads, stores and other instructions in machine code, and finds its
 * loops.
 *
 * An instruction has 16 bytes. Its fields here are the same from compute capability 7.0 to 10.0,
 * but for a branch's distance; tests/intercept/test_accesses.py compiles for several. */
#include "work/accesses.h"
#include <string.h>

enum {
    FIRST_CAPABILITY = 70,
    SPLIT_DISTANCE = 90, /* the first whose branches hold their distance in two parts */
    INSTRUCTION = 16,
    MOST_BRANCHES = 256,
    MOST_TOTAL = 1 << 28,
    WIDE = 8,
    CONSTANT_BIT = 15, /* of the upper word of a load: nobody writes what it reads */
    KEEP = 2,          /* a load's eviction priority: last */
    ALWAYS = 7         /* a predicate */
};
enum { /* the low 12 bits of an instruction */
       LOAD = 0x981,
       LOAD_TO_SHARED = 0xfae,
       STORE = 0x986,
       REDUCE = 0x98e,
       REDUCE_GLOBAL = 0x9a6,
       ATOMIC = 0x9a8,
       EXCHANGE = 0x3a9,
       BRANCH = 0x947,
       BRANCH_UNIFORM = 0x547,
       ADD_CONSTANT = 0x810,
       ADD_CONSTANT_SHORT = 0x836,
       ADD_CONSTANT_UNIFORM = 0x890,
       COMPARE_CONSTANT = 0x80c,
       COMPARE_CONSTANT_UNIFORM = 0x88c,
       SET = 0x802,
       SET_BY_PRODUCT = 0x424, /* 0 x 0 + a constant */
       SET_UNIFORM = 0x882,
       SPECIAL = 0x308,
       /* and the low 9 of them, whatever the operands are */
       COMPARES = 0x00c,
       COMPARES_FLOAT = 0x00b,
       COMBINES = 0x01c,
       COMPARES_UNIFORM = 0x08c,
       COMBINES_UNIFORM = 0x09c,
       NOTHING = 0x918 /* after the end */
};

struct instruction {
    uint64_t low, high;
};
struct branch {
    size_t at, target; /* instructions */
    double trips;      /* of a loop's counter; 0: not known */
    bool skips;        /* a branch forward over what counts as skipped */
};
struct code {
    const char *data;
    size_t count;
    unsigned capability;
    struct branch branches[MOST_BRANCHES];
    size_t branch_count;
};

static struct instruction instruction_at(const struct code *code, size_t index)
{
    struct instruction found;
    memcpy(&found, code->data + index * INSTRUCTION, sizeof found);
    return found;
}

static unsigned opcode(struct instruction at) { return at.low & 0xfff; }
static unsigned guard(struct instruction at) { return at.low >> 12 & 7; }
static unsigned destination(struct instruction at) { return at.low >> 16 & 0xff; }
static unsigned source(struct instruction at) { return at.low >> 24 & 0xff; }
static uint32_t constant(struct instruction at) { return (uint32_t)(at.low >> 32); }
static unsigned result(struct instruction compare) { return compare.high >> 17 & 7; }

/* bytes per thread of a load or store */
static unsigned width(struct instruction at)
{
    static const unsigned widths[8] = {1, 1, 2, 2, 4, 8, 16, 0};
    return widths[at.high >> 9 & 7];
}

/* PH_ACCESSES: it accesses no global memory */
static enum ph_access access_of(struct instruction at)
{
    bool wide = width(at) >= WIDE;
    switch (opcode(at)) {
    case LOAD:
    case LOAD_TO_SHARED:
        if (!wide) return PH_READ_NARROW;
        return (at.high >> 20 & 3) == KEEP ? PH_READ_KEPT : PH_READ_WIDE;
    case STORE: return wide ? PH_WRITTEN_WIDE : PH_WRITTEN_NARROW;
    case REDUCE:
    case REDUCE_GLOBAL:
    case ATOMIC:
    case EXCHANGE: return PH_ATOMIC;
    default: return PH_ACCESSES;
    }
}

/* ---- branches ---- */
/* The index of the instruction that a branch goes to. The distance from the next instruction is a
 * signed number of 4-byte units, at bit 34. Later code has 8 lower bits of it at bit 16. */
static int64_t target(const struct code *code, struct instruction branch, size_t index)
{
    uint64_t upper = (branch.low >> 34 | branch.high << 30) & 0xffffffffffffull;
    int64_t distance = (int64_t)(upper << 16) >> 16;
    if (code->capability >= SPLIT_DISTANCE)
        distance = distance * 256 + (int64_t)(branch.low >> 16 & 0xff);
    return (int64_t)index + 1 + distance / 4;
}

/* whether the instruction sets the predicate */
static bool sets(struct instruction at, unsigned predicate, bool uniform)
{
    unsigned family = opcode(at) & 0x1ff;
    bool compares = uniform ? family == COMPARES_UNIFORM || family == COMBINES_UNIFORM
                            : family == COMPARES || family == COMPARES_FLOAT || family == COMBINES;
    return compares && result(at) == predicate;
}

/* the upper half of a comparison of 64 bits, whose lower half comes before it */
static bool upper_half(struct instruction at)
{
    unsigned family = opcode(at) & 0x1ff;
    return (family == COMPARES || family == COMPARES_UNIFORM) && (at.high >> 8 & 1);
}

/* How much less than 0 a counter is before the loop: compilers let it begin one step early, and add
 * first. */
static double begins_below(const struct code *code, const struct branch *loop, unsigned counter,
                           bool uniform)
{
    for (size_t i = loop->target; i-- > 0;) {
        struct instruction at = instruction_at(code, i);
        bool set =
            uniform ? opcode(at) == SET_UNIFORM : opcode(at) == SET || opcode(at) == SET_BY_PRODUCT;
        if (set && destination(at) == counter)
            return constant(at) > INT32_MAX ? (double)UINT32_MAX + 1 - constant(at) : 0;
    }
    return 0;
}

/* The counter of a loop is a register that it compares with a constant for the branch back, and to
 * which it adds another. */
static void find_counter(const struct code *code, struct branch *loop)
{
    struct instruction back = instruction_at(code, loop->at), compared = {0};
    bool uniform = opcode(back) == BRANCH_UNIFORM;
    unsigned predicate = uniform ? back.low >> 24 & 7 : guard(back);
    size_t compared_at = loop->at;
    while (compared_at-- > loop->target) {
        compared = instruction_at(code, compared_at);
        if (sets(compared, predicate, uniform) && !upper_half(compared)) break;
    }
    if (opcode(compared) != (uniform ? COMPARE_CONSTANT_UNIFORM : COMPARE_CONSTANT) ||
        !sets(compared, predicate, uniform))
        return;
    for (size_t i = loop->target; i < loop->at; i++) {
        struct instruction at = instruction_at(code, i);
        bool adds = uniform ? opcode(at) == ADD_CONSTANT_UNIFORM
                            : opcode(at) == ADD_CONSTANT || opcode(at) == ADD_CONSTANT_SHORT;
        if (!adds || destination(at) != source(at) || source(at) != source(compared)) continue;
        if (!constant(at) || constant(at) > constant(compared) || constant(compared) >= MOST_TOTAL)
            continue;
        double from = begins_below(code, loop, source(at), uniform);
        loop->trips = (constant(compared) + from) / constant(at);
        if (compared_at < i) loop->trips++; /* it compares what the counter was */
    }
}

/* whether nothing between a branch and its target stores, or reads but constant tables */
static bool skips(const struct code *code, const struct branch *branch)
{
    for (size_t i = branch->at + 1; i < branch->target; i++) {
        struct instruction at = instruction_at(code, i);
        enum ph_access kind = access_of(at);
        bool table = kind == PH_READ_NARROW && (at.high >> CONSTANT_BIT & 1);
        if (kind != PH_ACCESSES && !table) return false;
    }
    return true;
}

static bool find_branches(struct code *code)
{
    for (size_t i = 0; i < code->count; i++) {
        struct instruction at = instruction_at(code, i);
        if (opcode(at) != BRANCH && opcode(at) != BRANCH_UNIFORM) continue;
        int64_t to = target(code, at, i);
        bool back = to >= 0 && to < (int64_t)i; /* one that goes to itself ends the kernel */
        bool forward = to > (int64_t)i && to <= (int64_t)code->count &&
                       (guard(at) != ALWAYS || opcode(at) == BRANCH_UNIFORM);
        if (!back && !forward) continue;
        if (code->branch_count == MOST_BRANCHES) return false;
        struct branch *branch = &code->branches[code->branch_count++];
        *branch = (struct branch){.at = i, .target = (size_t)to};
        if (back)
            find_counter(code, branch);
        else
            branch->skips = skips(code, branch);
    }
    return true;
}

/* How often an instruction runs, as far as the loops around it say; `*counted`: all of them do. */
static double trips(const struct code *code, size_t index, bool *counted)
{
    double times = 1;
    *counted = true;
    for (size_t i = 0; i < code->branch_count; i++) {
        const struct branch *branch = &code->branches[i];
        if (branch->target > branch->at) {
            if (branch->skips && index > branch->at && index < branch->target) return 0;
        } else if (index >= branch->target && index <= branch->at) {
            if (branch->trips)
                times *= branch->trips;
            else
                *counted = false;
        }
    }
    return times;
}

struct ph_accesses ph_accesses_of(const struct ph_cubin *image, const Elf64_Shdr *section)
{
    struct ph_accesses found = {0};
    struct code code = {.data = ph_cubin_contents(image, section),
                        .count = section->sh_size / INSTRUCTION,
                        .capability = ph_cubin_capability(image)};
    if (!code.data || code.capability < FIRST_CAPABILITY || !find_branches(&code)) return found;
    double total[PH_ACCESSES] = {0}, per_trip[PH_ACCESSES] = {0};
    for (size_t i = 0; i < code.count; i++) {
        struct instruction at = instruction_at(&code, i);
        bool counted;
        double times = trips(&code, i, &counted), *sums = counted ? total : per_trip;
        enum ph_access kind = access_of(at);
        if (opcode(at) == NOTHING) continue;
        if (kind < PH_ACCESSES) sums[kind] += (kind == PH_ATOMIC ? 1 : width(at)) * times;
        if (opcode(at) == SPECIAL) sums[PH_SPECIAL] += times;
        sums[PH_INSTRUCTIONS] += times;
    }
    for (unsigned i = 0; i < PH_ACCESSES; i++) {
        found.total[i] = (uint64_t)(total[i] < MOST_TOTAL ? total[i] : MOST_TOTAL);
        found.per_trip[i] = (uint64_t)(per_trip[i] < MOST_TOTAL ? per_trip[i] : MOST_TOTAL);
    }
    found.known = true;
    return found;
}

static void pack_counts(struct ph_pack *pack, const uint64_t counts[PH_ACCESSES])
{
    ph_pack_array(pack, PH_ACCESSES);
    for (unsigned i = 0; i < PH_ACCESSES; i++) ph_pack_uint(pack, counts[i]);
}

void ph_accesses_pack(struct ph_pack *pack, const struct ph_accesses *accesses)
{
    ph_pack_array(pack, 2);
    pack_counts(pack, accesses->total);
    pack_counts(pack, accesses->per_trip);
}
