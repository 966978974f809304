/* simulated/values/replay.h - recorded values (simulated/values/replay.c). */
#ifndef PH_SIMULATED_REPLAY_H
#define PH_SIMULATED_REPLAY_H
#include <stdbool.h>
#include <stddef.h>

struct ph_replayed {
    const void *value;
    size_t bytes;
    int dtype; /* c10::ScalarType */
};
/* Every asking counts; with `wanted`, whether the question has a recorded answer on this occasion.
 */
bool ph_replay(const char *question, bool wanted, struct ph_replayed *told);
/* Before the host reads device memory: unknown bytes get what was recorded, if it is `wanted`. True
 * when they did. */
bool ph_replay_read(const void *source, size_t bytes, bool wanted);
#endif
