/* payload.c - results of small collectives, delivered when they are needed.
 *
 * Why it exists: issuing a collective must not wait for the other members, and NCCL does not. But a
 * small operator that runs on the CPU reads the result at once. So a result stays pending until its
 * bytes are read or written here, and only then is it waited for. */
#include "base/fork.h"
#include "simulated/values/payload.h"
#include "base/log.h"
#include "link/connection.h"
#include "time/host_clock.h"
#include "simulated/values/defined.h"
#include "simulated/values/dirty.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct pending {
    unsigned char *destination;
    size_t bytes;
    uint64_t node;
    uint32_t index;
    struct pending *next;
};
/* in issue order: a later result overwrites an earlier one */
static struct pending *first, **last = &first;
static _Atomic int pending_count;
static pthread_mutex_t PH_FREE_IN_CHILD pending_lock = PTHREAD_MUTEX_INITIALIZER;

static struct pending *take_locked(struct pending **link)
{
    struct pending *item = *link;
    *link = item->next;
    if (last == &item->next) last = link;
    atomic_fetch_sub(&pending_count, 1);
    return item;
}

/* These bytes are overwritten as a whole, so their pending results are not needed. Without this,
 * results that nothing reads (gradients, next to large ones) would accumulate. */
static void supersede_locked(const unsigned char *low, const unsigned char *high)
{
    for (struct pending **link = &first; *link;)
        if ((*link)->destination >= low && (*link)->destination + (*link)->bytes <= high)
            free(take_locked(link));
        else
            link = &(*link)->next;
}

void ph_payload_drop(const void *pointer, size_t bytes)
{
    if (atomic_load_explicit(&pending_count, memory_order_acquire) == 0) return;
    pthread_mutex_lock(&pending_lock);
    supersede_locked(pointer, (const unsigned char *)pointer + bytes);
    pthread_mutex_unlock(&pending_lock);
}

void ph_payload_expect(void *destination, size_t bytes, uint64_t node, uint32_t index)
{
    struct pending *item = malloc(sizeof *item);
    if (!item) ph_die("out of host memory");
    *item = (struct pending){destination, bytes, node, index, NULL};
    pthread_mutex_lock(&pending_lock);
    supersede_locked(destination, item->destination + bytes);
    *last = item;
    last = &item->next;
    atomic_fetch_add(&pending_count, 1);
    pthread_mutex_unlock(&pending_lock);
}

static void deliver(const struct pending *item)
{
    struct ph_pack body = {0};
    uint64_t req = ph_request_id();
    ph_pack_uint(&body, req);
    ph_pack_uint(&body, ph_now());
    ph_pack_uint(&body, item->node);
    ph_pack_uint(&body, item->index);
    ph_host_pause();
    ph_send(PH_MESSAGE_FETCH, &body, 4);
    ph_pack_free(&body);
    struct ph_reply reply;
    size_t n;
    /* Without a time-out, because a wrong value would be worse than a wait. If the result can never
     * come, the hub answers with an error, and ph_wait exits. */
    ph_wait(req, &reply, -1);
    const unsigned char *bytes = ph_read_bytes(&reply, &n);
    if (n > item->bytes) n = item->bytes;
    ph_mark_dirty(item->destination, n);
    if (n) memcpy(item->destination, bytes, n);
    ph_zero(item->destination + n, item->bytes - n);
    if (ph_read_int(&reply))
        ph_mark_undefined(item->destination, item->bytes);
    else
        ph_mark_defined(item->destination, item->bytes);
    ph_reply_free(&reply);
    ph_host_resume();
}

void ph_payload_settle(const void *pointer, size_t bytes)
{
    if (atomic_load_explicit(&pending_count, memory_order_acquire) == 0) return;
    const unsigned char *low = pointer, *high = low + bytes;
    for (;;) {
        struct pending *hit = NULL;
        pthread_mutex_lock(&pending_lock);
        for (struct pending **link = &first; *link; link = &(*link)->next)
            if ((*link)->destination < high && low < (*link)->destination + (*link)->bytes) {
                hit = take_locked(link);
                break;
            }
        pthread_mutex_unlock(&pending_lock);
        if (!hit) return;
        deliver(hit);
        free(hit);
    }
}
