/* fake_interceptor.c - stands in for the interceptor's clock. The test drives it through fake_set
 * and reads back what was reported. */
#include <stdint.h>
static uint64_t elapsed, allocated, reserved;
void fake_set(uint64_t value) { elapsed = value; }
uint64_t phantora_elapsed_ns(void) { return elapsed; }
int64_t phantora_touch_clock(int clock_id)
{
    return clock_id == 0 ? 1700000000000000000 : 5000000000;
}
void phantora_pass_ns(uint64_t ns) { elapsed += ns; }
void phantora_report_peaks(uint64_t a, uint64_t r) { allocated = a, reserved = r; }
uint64_t fake_peak(int which) { return which ? reserved : allocated; }
