/* plant.c - the one number that an operator reads back from its own kernel.
 *
 * Why it exists: kernels do nothing here, but a few operators size their result by what theirs
 * counted (nonzero, unique), or answer by it (equal). The values library computes that number on
 * the CPU when such an operator starts and plants it: the thread's device-to-host copies of that
 * many bytes yield it until the operator ends. Copies of 4 bytes also yield the low half of a
 * number of 8: Thrust counts in either width, by the size of the problem. */
#include "base/core.h"
#include <string.h>

static _Thread_local struct {
    unsigned char value[8];
    size_t bytes;
    bool exact; /* computed of operands that are known, all of them */
} planted;

PH_API(void, phantora_values_scalar_readback, (const void *value, size_t bytes, int exact))
{
    planted.bytes = value && bytes <= sizeof planted.value ? bytes : 0;
    planted.exact = planted.bytes && exact;
    if (planted.bytes) memcpy(planted.value, value, planted.bytes);
}

static bool answers(size_t bytes)
{
    return planted.bytes && (bytes == planted.bytes || (bytes == 4 && planted.bytes == 8));
}

bool ph_scalar_readback_exact(size_t bytes) { return planted.exact && answers(bytes); }

bool ph_scalar_readback(void *destination, size_t bytes)
{
    if (!answers(bytes)) return false;
    memcpy(destination, planted.value, bytes);
    return true;
}

PH_API(void, phantora_values_failed, (const char *operator_name, const char *reason))
{
    /* each failure is counted by the values library; the first few say what kind they are */
    static _Atomic int told;
    if (atomic_fetch_add(&told, 1) < 5)
        ph_warn("%s could not be run on the CPU, its small results read as zero: %.200s",
                operator_name, reason);
}
