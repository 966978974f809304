/* time/host_pace.c - how fast this process's host is now.
 *
 * Why it exists: ranks that meet in a collective wait for the slowest of their hosts, so a step
 * takes the mean of the slowest, not the slowest of the means. Real hosts differ in two ways, both
 * measured on host-bound jobs (bench/host_calls, bench/gpus):
 *
 * - Processes of one job on one host, run after run, differ by 10 % (standard deviation). These are
 *   not drawn: N ranks have the N expected values of a sample in order of size. So a job of one
 * rank has the middle pace, and the slowest of eight ranks the expected one, in every run.
 * - The pace of one process varies by 9 %, and has forgotten what it was after about 120 ms. Ranks
 *   vary nearly independently (correlation 0.2). A rank's values are drawn one from each quarter of
 *   the distribution, in a random order, so that the mean of a short run is already the middle.
 *
 * Single calls vary as well, by half of their time, but the sum of a step's thousand calls varies
 * by 1 % from that, so they are not drawn one by one.
 *
 * Rule: the pace depends on the rank and the calls that it has made only. So runs repeat, and two
 * runs whose host times differ a little meet the same pace at the same place. */
#include "time/host_pace.h"
#include "base/fnv1a.h"
#include <stdlib.h>

#define PROCESSES 0.10
#define VARIATION 0.09
/* 120 ms of host time, of which calls are about 15 % (8 in tensor-parallel steps, 29 in plain ones)
 */
#define FORGOTTEN_NS 18e6

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* e to a small power; libm is not linked */
static double exponential(double x)
{
    double term = 1, sum = 1;
    for (int i = 1; i < 12; i++) sum += term *= x / i;
    return sum;
}

/* The standard normal variable below which a share `part` of all lie, by linear interpolation. */
static double normal_quantile(double part)
{
    static const double known[][2] = {{.5, 0},        {.6, .2533},    {.7, .5244},    {.8, .8416},
                                      {.9, 1.2816},   {.95, 1.6449},  {.975, 1.96},   {.99, 2.3263},
                                      {.995, 2.5758}, {.999, 3.0902}, {.9999, 3.719}, {1, 4}};
    double tail = part < .5 ? 1 - part : part;
    int i = 1;
    while (known[i][0] < tail) i++;
    double share = (tail - known[i - 1][0]) / (known[i][0] - known[i - 1][0]);
    double value = known[i - 1][1] + share * (known[i][1] - known[i - 1][1]);
    return part < .5 ? -value : value;
}

/* Of every four numbers in a row each gets another quarter. */
static uint64_t quarter_of(uint64_t seed, uint64_t number)
{
    uint64_t quarter[] = {0, 1, 2, 3}, draw = mix(seed + number / 4);
    for (uint64_t left = 4; left > 1; left--, draw /= 4) {
        uint64_t chosen = draw % left, last = quarter[left - 1];
        quarter[left - 1] = quarter[chosen];
        quarter[chosen] = last;
    }
    return quarter[number % 4];
}

/* A standard normal variable, by number. */
static double normal(uint64_t seed, uint64_t number)
{
    double within = (double)(mix(seed ^ ~number) >> 11) / 9007199254740992.0;
    return normal_quantile(((double)quarter_of(seed, number) + within) / 4);
}

/* Which place of `ranks` this rank has when all are put in the order of their pace: all places are
 * taken, and neighbours lie apart. */
static uint64_t place_of(uint64_t rank, uint64_t ranks)
{
    uint64_t stride = ranks * 5 / 8 | 1, a = stride, b = ranks;
    while (b) { /* made coprime to the number of ranks */
        uint64_t rest = a % b;
        a = b, b = rest;
        if (!b && a != 1) a = stride += 2, b = ranks;
    }
    return (rank * stride + ranks / 2) % ranks;
}

/* Blom's approximation of the expected order statistics: the largest of 2, 8 and 64 is 0.59, 1.43
 * and 2.36 standard deviations above the mean (exactly 0.56, 1.42, 2.35). */
static void place(struct ph_host_pace *pace, uint64_t rank, uint64_t ranks)
{
    double part = ((double)place_of(rank, ranks) + 0.625) / ((double)ranks + 0.25);
    pace->process = exponential(PROCESSES * normal_quantile(part));
    pace->seed = mix(PH_FNV1A + rank);
}

void ph_host_pace_start(struct ph_host_pace *pace)
{
    const char *rank_text = getenv("RANK"), *ranks_text = getenv("WORLD_SIZE");
    uint64_t ranks = ranks_text ? strtoull(ranks_text, NULL, 10) : 1;
    uint64_t rank = rank_text ? strtoull(rank_text, NULL, 10) : 0;
    pace->placed = rank_text && ranks_text && rank < ranks;
    pace->passed = 0;
    if (pace->placed)
        place(pace, rank, ranks);
    else
        place(pace, 0, 1);
}

void ph_host_pace_join(struct ph_host_pace *pace, uint64_t rank, uint64_t ranks)
{
    if (pace->placed || ranks < 2) return;
    pace->placed = true;
    place(pace, rank, ranks);
}

double ph_host_pace(struct ph_host_pace *pace, uint64_t call_ns)
{
    double at = pace->passed / FORGOTTEN_NS;
    uint64_t before = (uint64_t)at;
    double b = at - (double)before, a = 1 - b;
    pace->passed += (double)call_ns;
    /* between two independent values the mean varies less; this keeps the variance */
    double between = (a * normal(pace->seed, before) + b * normal(pace->seed, before + 1));
    double square = a * a + b * b, root = 1;
    for (int i = 0; i < 6; i++) root = (root + square / root) / 2;
    return pace->process * exponential(VARIATION * between / root - VARIATION * VARIATION / 2);
}
