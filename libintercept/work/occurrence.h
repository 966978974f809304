/* work/occurrence.h - replay keys: which GPU values a rank asks for, and how often it has asked
 * (work/occurrence.c). */
#ifndef PH_OCCURRENCE_H
#define PH_OCCURRENCE_H
#include <stddef.h>
#include <stdint.h>

enum { PH_REPLAY_KEY = 512 };
uint64_t ph_replay_key_hash(const char *key);
uint32_t ph_occurrence(uint64_t hash); /* how often this process has met the key before */
/* The key of a host read of `bytes` bytes of device memory. */
void ph_read_replay_key(char text[PH_REPLAY_KEY], size_t bytes);
#endif
