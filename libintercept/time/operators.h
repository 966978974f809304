/* time/operators.h - the framework operator that encloses this thread's calls.
 *
 * Why it exists: the host-time model records time by operator. Signatures and the hub's estimators
 * use the operator to distinguish launches. The values library reports where operators begin and
 * end. */
#ifndef PH_OPERATORS_H
#define PH_OPERATORS_H
#include "base/msgpack.h"
#include <stdbool.h>
#include <stdint.h>

/* The enclosing operator (NULL: none), and the index of the call among that operator's calls that
 * take host time, from 1. 0 outside of operators. `count`: this call takes host time and is
 * counted. */
uint32_t ph_operator_call(const char **name, bool count);
bool ph_operator_encloses(void);
/* Identifies a launch among others of equal dimensions: the operator, the shapes of its inputs, and
 * the index of the launch in it. False outside of operators. */
bool ph_operator_identity(uint64_t *identity);
/* packs LOOKUP's `context`: the operator that encloses this thread's call, or nil */
void ph_pack_context(struct ph_pack *body);
#endif
