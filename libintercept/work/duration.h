/* work/duration.h - how long a piece of GPU work takes (work/duration.c). */
#ifndef PH_DURATION_H
#define PH_DURATION_H
#include "base/msgpack.h"
#include "time/timeline.h"
#include "work/signature.h"
#include <stdbool.h>
#include <stdint.h>

struct ph_time ph_duration(const struct ph_signature *signature);
/* Looks `key` up in the shared table and in the answers that this process keeps. False: neither has
 * it. Sends no message, and takes no lock if the shared table has the key. */
bool ph_duration_known(uint64_t key, struct ph_time *time);
/* Asks the hub even if the duration is known here, and keeps the answer. The answer takes into
 * account all MEASURED messages that this process has sent before. */
struct ph_time ph_duration_ask(const struct ph_signature *signature);
#endif
