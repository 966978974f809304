/* Loops over CUDA calls, timed from C: through Python's ctypes a call costs more than most of what
 * is to be measured.
 *
 * Why it exists: host_costs.py reports what each call costs the host on a real driver. Entry points
 * come as pointers, so that this file needs neither CUDA headers nor libraries: `cc -O2 -shared
 * -fPIC`. Every function returns nanoseconds per call, or a negative CUDA error code.
 */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    unsigned x, y, z;
} dim3_t;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define LOOP(count, call)                            \
    do {                                             \
        int64_t start = now_ns();                    \
        for (int i = 0; i < (count); i++) {          \
            int failed = (call);                     \
            if (failed) return -failed;              \
        }                                            \
        return (double)(now_ns() - start) / (count); \
    } while (0)

/* cudaLaunchKernel of a kernel whose parameters are `parameters` (NULL: none) */
double launch_loop(int (*launch)(const void *, dim3_t, dim3_t, void **, size_t, void *),
                   const void *kernel, unsigned blocks, unsigned threads, void **parameters,
                   void *stream, int count)
{
    dim3_t grid = {blocks, 1, 1}, block = {threads, 1, 1};
    LOOP(count, launch(kernel, grid, block, parameters, 0, stream));
}

double call_p_loop(int (*call)(void *), void *a, int count) { LOOP(count, call(a)); }
double call_pp_loop(int (*call)(void *, void *), void *a, void *b, int count)
{
    LOOP(count, call(a, b));
}
double call_ppu_loop(int (*call)(void *, void *, unsigned), void *a, void *b, unsigned c, int count)
{
    LOOP(count, call(a, b, c));
}
double call_void_loop(int (*call)(void), int count) { LOOP(count, call()); }
double memset_loop(int (*call)(void *, int, size_t, void *), void *to, size_t bytes, void *stream,
                   int count)
{
    LOOP(count, call(to, 0, bytes, stream));
}
double copy_loop(int (*call)(void *, const void *, size_t, int, void *), void *to, const void *from,
                 size_t bytes, int kind, void *stream, int count)
{
    LOOP(count, call(to, from, bytes, kind, stream));
}

/* from the launch call to the return of the synchronisation that waits for it, on an idle GPU */
double launch_and_wait_loop(int (*launch)(const void *, dim3_t, dim3_t, void **, size_t, void *),
                            int (*wait)(void *), const void *kernel, void **parameters,
                            void *stream, int count)
{
    dim3_t one = {1, 1, 1};
    LOOP(count, launch(kernel, one, one, parameters, 0, stream) || wait(stream));
}
