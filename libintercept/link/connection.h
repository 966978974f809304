/* link/connection.h - this process's connection to the hub: messages, requests, and its rank
 * statistics. Thread-safe. */
#ifndef PH_CONNECTION_H
#define PH_CONNECTION_H
#include "base/msgpack.h"
#include "base/protocol.gen.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Creates the rank statistics, sends HELLO and waits for WELCOME. Dies with one line when there is
 * no hub. Returns the name of the rank statistics. */
const char *ph_hub_connect(void);
bool ph_hub_connected(void);
struct ph_rank_stats *ph_stats(void); /* never NULL after ph_hub_connect */
uint64_t ph_request_id(void);
/* Sends [type, seq, body...]. `body` holds `fields` packed values. */
void ph_send(enum ph_message type, const struct ph_pack *body, uint32_t fields);
/* Waits for the reply to request `req` and positions the cursor after [type, req]. Dies if the hub
 * answers with an error. Waits for ever if timeout_ms < 0. False when the time ran out. */
bool ph_wait(uint64_t req, struct ph_reply *reply, int timeout_ms);
void ph_reply_free(struct ph_reply *reply);
#endif
