/* scalar_readback.c - the number that an operator reads back from its own kernel.
 *
 * Why it exists: kernels do nothing here, but a few operators size their result by a number that
 * theirs counted (nonzero, unique), or return it (equal). When such an operator starts, the values
 * library computes the number on the CPU. Until the operator ends, the thread's device-to-host
 * copies of that size read it. Copies of 4 bytes read the low half of an 8-byte number, because
 * Thrust counts in either width, depending on the problem's size. */
#include "simulated/values/scalar_readback.h"
#include "base/log.h"
#include <stdatomic.h>
#include <string.h>

static _Thread_local struct {
    unsigned char value[8];
    size_t bytes;
    bool exact; /* all operands were defined */
} number;

PH_API(void, phantora_values_scalar_readback, (const void *value, size_t bytes, int exact))
{
    number.bytes = value && bytes <= sizeof number.value ? bytes : 0;
    number.exact = number.bytes && exact;
    if (number.bytes) memcpy(number.value, value, number.bytes);
}

static bool answers(size_t bytes)
{
    return number.bytes && (bytes == number.bytes || (bytes == 4 && number.bytes == 8));
}

bool ph_scalar_readback_exact(size_t bytes) { return number.exact && answers(bytes); }

bool ph_scalar_readback(void *destination, size_t bytes)
{
    if (!answers(bytes)) return false;
    memcpy(destination, number.value, bytes);
    return true;
}

PH_API(void, phantora_values_failed, (const char *operator_name, const char *reason))
{
    /* the values library counts each failure; the first few are enough to see their kind */
    static _Atomic int reported;
    if (atomic_fetch_add(&reported, 1) < 5)
        ph_warn("%s could not be run on the CPU, its small results read as zero: %.200s",
                operator_name, reason);
}
