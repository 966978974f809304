/* time.c - the arithmetic of phantora_ns/sim/_flow_time.py, operation for operation.
 *
 * Why it exists: both engines must round in the same way. The file is compiled with
 * -ffp-contract=off, so that no multiplication and subtraction are fused into one rounding on
 * machines that can do it. */
#include "engine.h"

#define SLACK_TICKS 256
#define FOREVER_NS ((int64_t)1 << 62)

tick_t ns_to_tick(int64_t time_ns) { return (tick_t)time_ns * (1 << 20); }

int64_t tick_to_ns(tick_t tick)
{
    tick_t ns = -((SLACK_TICKS - tick) >> 20);
    return ns < FOREVER_NS ? (int64_t)ns : FOREVER_NS;
}

static double ticks_to_double(tick_t ticks)
{
    /* Both conversions round to nearest, ties to even, as Python's do. The 64-bit conversion is one
     * instruction. */
    return ticks == (int64_t)ticks ? (double)(int64_t)ticks : (double)ticks;
}

double bytes_left(double left, double rate, tick_t ticks)
{
    return left - rate * (ticks_to_double(ticks) * 0x1p-20);
}

tick_t end_tick(tick_t tick, double left, double rate)
{
    double ticks = left / rate * 0x1p20 + 0.5;
    if (ticks < 2.0) return tick + 1;
    if (ticks < 0x1p62) return tick + (int64_t)ticks;
    return ticks < 0x1p110 ? tick + (tick_t)ticks : TICK_MAX;
}
