/* reply.c - a reply of the hub, as msgpack. The first byte says what is expected of it. */
#include "../../../libintercept/base/msgpack.c"
#include "fuzz.h"

#include <stdarg.h>
#include <stdlib.h>

void ph_die(const char *format, ...)
{
    (void)format;
    abort();
}

void fuzz_one(const unsigned char *bytes, size_t size)
{
    if (!size) return;
    struct ph_reply reply = {(unsigned char *)(uintptr_t)bytes + 1, size - 1, 0, false, NULL};
    volatile uint64_t sum = 0;
    for (unsigned i = 0; i < 64 && !reply.bad; i++) {
        size_t length = 0;
        const unsigned char *text;
        switch (bytes[0] >> i % 8 & 3) {
        case 0: sum += (uint64_t)ph_read_int(&reply); break;
        case 1: sum += ph_read_array(&reply); break;
        default:
            text = ph_read_bytes(&reply, &length);
            for (size_t j = 0; text && j < length; j++) sum += text[j];
        }
    }
}
