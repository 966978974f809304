/* work/duration.h - how long a piece of GPU work takes (work/duration.c). */
#ifndef PH_DURATION_H
#define PH_DURATION_H
#include "base/msgpack.h"
#include "time/timeline.h"
#include "work/signature.h"
#include <stdbool.h>
#include <stdint.h>

struct ph_time ph_duration(const struct ph_signature *signature);
/* What the shared table or this process knows; false: nobody has asked yet. Sends nothing, and
 * takes no lock where the table knows. */
bool ph_duration_known(uint64_t key, struct ph_time *time);
/* Asks the hub whatever is known here, and keeps its answer: what was MEASURED before it is taken
 * into account. */
struct ph_time ph_duration_ask(const struct ph_signature *signature);
#endif
