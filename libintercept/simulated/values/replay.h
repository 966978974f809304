/* simulated/values/replay.h - recorded values (replay.c). */
#ifndef PH_SIMULATED_REPLAY_H
#define PH_SIMULATED_REPLAY_H
#include <stdbool.h>
#include <stddef.h>

struct ph_replayed {
    const void *value;
    size_t bytes;
    int dtype; /* c10::ScalarType */
};
/* Whether this occurrence of a replay key has a recorded value, and that value. The occurrence
 * counts even if the value is not `wanted`. */
bool ph_replay(const char *key, bool wanted, struct ph_replayed *recorded);
/* Before the host reads device memory: if it is `wanted`, undefined bytes get their recorded value.
 * True if they did. */
bool ph_replay_read(const void *source, size_t bytes, bool wanted);
#endif
