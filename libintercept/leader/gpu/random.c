/* random.c - random numbers for buffers that only another rank could have filled.
 *
 * Why it exists: a GPU's clocks, and so its kernels' times, depend on how many bits toggle: with
 * zeros matrix products are several percent faster than with a job's activations. Floating-point
 * types get normal numbers (mean 0, variance 1). Integers are mostly indices and flags (tokens,
 * positions, masks), which must stay in range for tables of unknown size, so they get 0 or 1. */
#include "leader/gpu/random.h"
#include "base/log.h"
#include "nccl/nccl.h"
#include "leader/leader.h"
#include "leader/measure/gpu_load.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_BYTES = 8 << 20, COPY_DEFAULT = 4 };

int cudaMemcpyAsync(void *, const void *, size_t, int, void *),
    cudaMemcpy(void *, const void *, size_t, int), cudaMalloc(void **, size_t);

/* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* The sum of twelve uniform numbers minus six has mean 0 and variance 1, and is close enough to
 * normal (and never beyond 6). */
static double normal(uint64_t *state)
{
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t bits = next(state);
        sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    }
    return (double)sum / 65536.0 - 6.0;
}

/* A float with `exponent_bits` and `mantissa_bits`, truncated. Values that are too small become
 * zero; values that are too large become the largest. */
static uint8_t small_float(double value, int exponent_bits, int mantissa_bits, int largest)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    double fraction = frexp(fabs(value), &exponent); /* in [0.5, 1) */
    int field = exponent - 1 + bias, bits = 0;
    if (value != 0 && field > 0)
        bits = field << mantissa_bits | (int)((fraction * 2 - 1) * (1 << mantissa_bits));
    if (bits > largest) bits = largest;
    return (uint8_t)(bits | (value < 0 ? 0x80 : 0));
}

void ph_random_numbers(void *into, size_t bytes, int dtype)
{
    enum { E4M3_LARGEST = 0x7e, E5M2_LARGEST = 0x7b };
    uint64_t state = 0x7068616e746f7261ull; /* any constant will do; a constant makes runs repeat */
    size_t count = bytes / ph_nccl_type_bytes[dtype];
    for (size_t i = 0; i < count; i++) switch (dtype) {
        case PH_TYPE_FP16: ((_Float16 *)into)[i] = (_Float16)normal(&state); break;
        case PH_TYPE_FP32: ((float *)into)[i] = (float)normal(&state); break;
        case PH_TYPE_FP64: ((double *)into)[i] = normal(&state); break;
        case PH_TYPE_BF16: {
            float value = (float)normal(&state);
            uint32_t wide;
            memcpy(&wide, &value, 4);
            ((uint16_t *)into)[i] = (uint16_t)(wide >> 16);
            break;
        }
        case PH_TYPE_FP8_E4M3:
            ((uint8_t *)into)[i] = small_float(normal(&state), 4, 3, E4M3_LARGEST);
            break;
        case PH_TYPE_FP8_E5M2:
            ((uint8_t *)into)[i] = small_float(normal(&state), 5, 2, E5M2_LARGEST);
            break;
        case PH_TYPE_INT32:
        case PH_TYPE_UINT32: ((uint32_t *)into)[i] = next(&state) >> 63; break;
        case PH_TYPE_INT64:
        case PH_TYPE_UINT64: ((uint64_t *)into)[i] = next(&state) >> 63; break;
        default: ((uint8_t *)into)[i] = next(&state) >> 63; break;
        }
}

static void *table_of(int dtype, void *stream)
{
    static void *tables[PH_TYPES];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!tables[dtype]) {
        void *host = malloc(TABLE_BYTES), *device = NULL;
        if (!host) ph_die("out of host memory");
        ph_random_numbers(host, TABLE_BYTES, dtype);
        ph_lead_settle(stream); /* allocating may wait for the GPU */
        if (PH_REAL(cudaMalloc)(&device, TABLE_BYTES) != 0 ||
            PH_REAL(cudaMemcpy)(device, host, TABLE_BYTES, COPY_DEFAULT) != 0)
            ph_die("the GPU has no room for %d MiB of random numbers, which stand for what other "
                   "ranks send",
                   TABLE_BYTES >> 20);
        free(host);
        tables[dtype] = device;
    }
    pthread_mutex_unlock(&lock);
    return tables[dtype];
}

void ph_random_fill(void *pointer, size_t bytes, int dtype, void *stream)
{
    void *table = table_of(dtype, stream);
    for (size_t done = 0; done < bytes; done += TABLE_BYTES) {
        size_t part = bytes - done < TABLE_BYTES ? bytes - done : TABLE_BYTES;
        int error =
            PH_REAL(cudaMemcpyAsync)((char *)pointer + done, table, part, COPY_DEFAULT, stream);
        if (error)
            ph_die("the leader's simulated NCCL could not fill a receive buffer (CUDA error %d)",
                   error);
        ph_gpu_load_copied(stream, part);
    }
}
