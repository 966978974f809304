/* pools.c - stream-ordered allocation: each device's default memory pool, which serves
 * cudaMallocAsync.
 *
 * Why it exists: PyTorch's backend:cudaMallocAsync reads the pool's statistics and sets how much
 * freed memory it keeps. Memory that a pool keeps stays charged to the device. Memory is freed in
 * the order of the calls, which is also the order in which values are computed here. The driver's
 * pool grows in pieces of 32 MiB and may fragment; that is not modelled. */
#define PH_CLASS PH_SIMULATED
#include "base/fork.h"
#include "base/log.h"
#include "cudagraph/graph.h"
#include "simulated/cuda/runtime.h"
#include "simulated/memory/memory.h"
#include <pthread.h>

enum { DEVICES = 8, GRAIN = 512 };
/* cudaMemPoolAttr */
enum { RELEASE_THRESHOLD = 4, RESERVED_NOW, RESERVED_MOST, USED_NOW, USED_MOST };
static struct pool {
    uint64_t used, kept, used_most, reserved_most, threshold;
    /* attributes 1 to 3: whether memory may be reused under certain orders; here it always is */
    int reuse[3];
} pools[DEVICES] = {[0 ... DEVICES - 1] = {.reuse = {1, 1, 1}}};
static pthread_mutex_t PH_FREE_IN_CHILD pool_lock = PTHREAD_MUTEX_INITIALIZER;

static struct pool *pool_of(void *handle)
{
    struct pool *pool = handle;
    return pool >= pools && pool < pools + ph_device_count() ? pool : NULL;
}

static void release_locked(struct pool *pool, uint64_t down_to)
{
    if (pool->kept <= down_to) return;
    ph_discharge((int)(pool - pools), pool->kept - down_to);
    pool->kept = down_to;
}

static uint64_t rounded(uint64_t bytes) { return (bytes + GRAIN - 1) / GRAIN * GRAIN; }

/* Allocations inside graphs are not simulated. The job is told, and its capture fails. */
static int refuse_captured(const char *call, struct ph_stream *stream)
{
    int error = ph_capture_check(stream);
    if (error > 0) return error;
    ph_unsupported(call);
    ph_capture_forbids_stream(stream);
    return CUDA_NOT_SUPPORTED;
}

static int allocate(struct pool *pool, void **pointer, size_t bytes, void *stream)
{
    if (!pool || !pointer) return ph_set_error(CUDA_INVALID_VALUE);
    struct ph_stream *resolved = ph_stream_resolve(stream);
    if (!resolved) return ph_set_error(CUDA_INVALID_HANDLE);
    if (PH_CAPTURING(resolved))
        return ph_set_error(refuse_captured("cudaMallocAsync (in a stream capture)", resolved));
    uint64_t size = rounded(bytes);
    ph_host_call(PH_CALL_WAIT);
    pthread_mutex_lock(&pool_lock);
    release_locked(pool,
                   pool->kept > size ? pool->kept - size : 0); /* this memory serves the request */
    *pointer = ph_device_alloc((int)(pool - pools), bytes);
    if (!*pointer && bytes) {
        release_locked(pool, 0);
        *pointer = ph_device_alloc((int)(pool - pools), bytes);
    }
    if (*pointer) pool->used += size;
    if (pool->used > pool->used_most) pool->used_most = pool->used;
    if (pool->used + pool->kept > pool->reserved_most)
        pool->reserved_most = pool->used + pool->kept;
    pthread_mutex_unlock(&pool_lock);
    return ph_set_error(*pointer || bytes == 0 ? CUDA_OK : CUDA_OUT_OF_MEMORY);
}

PH_API(int, cudaMallocAsync, (void **pointer, size_t bytes, void *stream))
{
    return allocate(&pools[ph_device_current()], pointer, bytes, stream);
}

PH_API(int, cudaMallocFromPoolAsync, (void **pointer, size_t bytes, void *pool, void *stream))
{
    return allocate(pool_of(pool), pointer, bytes, stream);
}

PH_API(int, cudaFreeAsync, (void *pointer, void *stream))
{
    struct ph_allocation found;
    struct ph_stream *resolved = ph_stream_resolve(stream);
    if (!resolved) return ph_set_error(CUDA_INVALID_HANDLE);
    if (PH_CAPTURING(resolved))
        return ph_set_error(refuse_captured("cudaFreeAsync (in a stream capture)", resolved));
    ph_host_call(PH_CALL_WAIT);
    if (!pointer) return CUDA_OK;
    if (!ph_find(pointer, &found) || !ph_device_free(pointer))
        return ph_set_error(CUDA_INVALID_VALUE);
    struct pool *pool = &pools[found.device];
    uint64_t size = rounded(found.bytes);
    pthread_mutex_lock(&pool_lock);
    /* memory of cudaMalloc may be freed this way too; it was never the pool's */
    pool->used -= size < pool->used ? size : pool->used;
    if (pool->kept + size <= pool->threshold && ph_charge(found.device, size)) pool->kept += size;
    pthread_mutex_unlock(&pool_lock);
    return CUDA_OK;
}

PH_API(int, cudaDeviceGetDefaultMemPool, (void **pool, int device))
{
    if (device < 0 || device >= ph_device_count()) return ph_set_error(CUDA_INVALID_DEVICE);
    *pool = &pools[device];
    return CUDA_OK;
}
/* the current pool cannot be changed, so it is the default one */
PH_API(int, cudaDeviceGetMemPool, (void **pool, int device))
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}

PH_API(int, cudaMemPoolSetAttribute, (void *handle, int attribute, void *value))
{
    struct pool *pool = pool_of(handle);
    if (!pool || !value || attribute < 1 || attribute > USED_MOST)
        return ph_set_error(CUDA_INVALID_VALUE);
    pthread_mutex_lock(&pool_lock);
    int error = CUDA_OK;
    if (attribute < RELEASE_THRESHOLD)
        pool->reuse[attribute - 1] = *(int *)value;
    else if (attribute == RELEASE_THRESHOLD) {
        pool->threshold = *(uint64_t *)value;
        release_locked(pool, pool->threshold);
    } else if (*(uint64_t *)value != 0 || attribute == RESERVED_NOW || attribute == USED_NOW)
        error = CUDA_INVALID_VALUE; /* only peaks can be reset */
    else if (attribute == RESERVED_MOST)
        pool->reserved_most = pool->used + pool->kept;
    else
        pool->used_most = pool->used;
    pthread_mutex_unlock(&pool_lock);
    return ph_set_error(error);
}

PH_API(int, cudaMemPoolGetAttribute, (void *handle, int attribute, void *value))
{
    struct pool *pool = pool_of(handle);
    if (!pool || !value || attribute < 1 || attribute > USED_MOST)
        return ph_set_error(CUDA_INVALID_VALUE);
    pthread_mutex_lock(&pool_lock);
    const uint64_t figures[] = {pool->threshold, pool->used + pool->kept, pool->reserved_most,
                                pool->used, pool->used_most};
    if (attribute < RELEASE_THRESHOLD)
        *(int *)value = pool->reuse[attribute - 1];
    else
        *(uint64_t *)value = figures[attribute - RELEASE_THRESHOLD];
    pthread_mutex_unlock(&pool_lock);
    return CUDA_OK;
}

PH_API(int, cudaMemPoolTrimTo, (void *handle, size_t bytes))
{
    struct pool *pool = pool_of(handle);
    if (!pool) return ph_set_error(CUDA_INVALID_VALUE);
    pthread_mutex_lock(&pool_lock);
    release_locked(pool, bytes > pool->used ? bytes - pool->used : 0);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_OK;
}

PH_API(int, cudaMemPoolSetAccess, (void *handle, const void *access, size_t count))
{
    (void)access, (void)count; /* all devices of a process see one address space */
    return ph_set_error(pool_of(handle) ? CUDA_OK : CUDA_INVALID_VALUE);
}
