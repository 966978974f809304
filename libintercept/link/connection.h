/* link/connection.h - this process's connection to the hub: messages, requests, and its shared
 * page. Thread-safe. */
#ifndef PH_CONNECTION_H
#define PH_CONNECTION_H
#include "base/msgpack.h"
#include "link/shared_pages.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum ph_message_type {
    PH_HELLO = 1,
    PH_SYNC,
    PH_QUERY,
    PH_TIMES,
    PH_COMM_INIT,
    PH_COMM_SPLIT,
    PH_COMM_FREE,
    PH_OPS,
    PH_FETCH,
    PH_LOOKUP,
    PH_NOTE,
    PH_BYE,
    PH_MEASURED,
    PH_HOST /* a leader's (docs/leading.md) */
};
/* Makes the page, says HELLO, waits for WELCOME; dies with one line when there is no hub. Returns
 * the page's name. */
const char *ph_hub_connect(void);
bool ph_hub_connected(void);
struct ph_rank_page *ph_page(void); /* never NULL after ph_hub_connect */
uint64_t ph_request_id(void);
/* Sends [type, seq, body...]; body holds `fields` packed values. */
void ph_send(enum ph_message_type type, const struct ph_pack *body, uint32_t fields);
/* Waits for the reply that carries `req`; positioned after [type, req]. Dies if the hub answers
 * with an error. timeout_ms < 0 waits for ever; false when the time ran out. */
bool ph_wait(uint64_t req, struct ph_reply *reply, int timeout_ms);
void ph_reply_free(struct ph_reply *reply);
#endif
