/* pinned.c - a pool of pinned host memory.
 *
 * Why it exists: data that the leader sends to the GPU or reads back for its own purposes must not
 * make the host wait. That needs pinned memory, and pinning itself may wait for the GPU. So blocks
 * are kept by size. Host functions return them, and a host function makes no CUDA call. */
#include "base/log.h"
#include "leader/leader.h"
#include <pthread.h>
#include <stdlib.h>

enum { CLASSES = 16, SMALLEST = 4096 }; /* SMALLEST << class bytes */

int cudaHostAlloc(void **, size_t, unsigned);

static struct ph_lead_pinned *spare[CLASSES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct ph_lead_pinned *ph_lead_pin(size_t bytes, void *stream)
{
    unsigned class = 0;
    while ((size_t)SMALLEST << class < bytes) class++;
    if (class >= CLASSES) ph_die("%zu bytes are too many to be carried", bytes);
    pthread_mutex_lock(&lock);
    struct ph_lead_pinned *block = spare[class];
    if (block) spare[class] = block->next;
    pthread_mutex_unlock(&lock);
    if (block) return block;
    if (!(block = calloc(1, sizeof *block))) ph_die("out of host memory");
    ph_lead_settle(stream);
    int error = PH_REAL(cudaHostAlloc)((void **)&block->bytes, (size_t)SMALLEST << class, 0);
    if (error)
        ph_die("the leader cannot pin %zu bytes of host memory (CUDA error %d)",
               (size_t)SMALLEST << class, error);
    block->class = class;
    return block;
}

void ph_lead_unpin(struct ph_lead_pinned *block)
{
    pthread_mutex_lock(&lock);
    block->next = spare[block->class];
    spare[block->class] = block;
    pthread_mutex_unlock(&lock);
}
