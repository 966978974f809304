/* time/operators.h - the framework operator that this thread is in.
 *
 * Why it exists: the host-time model records time by operator, signatures and the hub's estimators
 * tell launches apart by it. The values library says where operators begin and end. */
#ifndef PH_OPERATORS_H
#define PH_OPERATORS_H
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

/* The enclosing operator (NULL: none), and the caller's place among its calls that take host time,
 * from 1; 0 outside of operators. `count`: this is one more such call. */
uint32_t ph_operator_call(const char **name, bool count);
/* What tells launches of equal dimensions apart: the operator, its inputs' shapes, and which of its
 * launches this is. False outside of operators. */
bool ph_operator_identity(uint64_t *identity);
/* LOOKUP's `context`: the operator that encloses this thread's call, or nil */
void ph_pack_context(struct ph_pack *body);
#endif
