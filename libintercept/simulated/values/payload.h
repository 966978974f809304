/* simulated/values/payload.h - pending results of small collectives (payload.c). */
#ifndef PH_PAYLOAD_H
#define PH_PAYLOAD_H
#include <stddef.h>
#include <stdint.h>

void ph_payload_expect(void *destination, size_t bytes, uint64_t node, uint32_t index);
/* delivers pending results; call it before reading or writing device memory on the CPU */
void ph_payload_settle(const void *pointer, size_t bytes);
#endif
