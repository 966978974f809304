/* link/flush.c - the hub has every message of this process before it ends.
 *
 * Why it exists: libzmq sends from a thread of its own, and a process that exits does not wait for
 * it. Without this, the hub may miss launches, warnings, the end of the last step and the time of
 * the last call. An answer means that the hub has handled everything that was sent before.
 *
 * A process that ends by _exit() or by a signal may still lose its last messages. */
#include "link/flush.h"
#include "base/api.h"
#include "base/log.h"
#include "link/connection.h"
#include <pthread.h>
#include <stdlib.h>

void ph_flush(const char *what)
{
    enum { PATIENCE_MS = 10000 };
    struct ph_pack body = {0};
    struct ph_reply reply;
    uint64_t req = ph_request_id();
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_pack_map(&body, 0);
    ph_pack_array(&body, 0);
    ph_send(PH_MESSAGE_TIMES, &body, 4); /* of no expressions */
    ph_pack_free(&body);
    if (ph_wait(req, &reply, PATIENCE_MS))
        ph_reply_free(&reply);
    else
        ph_warn("the hub does not answer at the end: %s may be missing", what);
}

/* The process acts again only after another of the job has ended: its start-up hook calls this
 * before it waits for that. Whoever ends may still wait for the hub, which then does not wait for
 * this one. */
PH_API(void, phantora_wait_to_end, (void))
{
    struct ph_pack body = {0};
    if (!ph_hub_connected()) return;
    ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
    ph_send(PH_MESSAGE_PARTING, &body, 1);
    ph_pack_free(&body);
}

/* A forked child that has not used CUDA is not connected. */
static void at_exit(void)
{
    if (ph_hub_connected()) ph_flush("the last messages of this process");
}

static void register_at_exit(void) { atexit(at_exit); }

void ph_flush_at_exit(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_at_exit);
}
