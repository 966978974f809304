/* calls.c - how long calls of CUDA's libraries keep the host, without a profiler attached.
 *
 * Why it exists: a profiler makes a call several times as long. Preloaded, this library passes each
 * call on and keeps a histogram of its wall time per class and thread; at exit it writes one line
 * of JSON to $CALLS_OUT.PID: class -> [calls, total ns, [bucket, calls] ...], buckets of 1/8
 * octave. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <math.h>
enum { LAUNCH, GEMM, DNN, COMM, COPY, MEMSET, RECORD, WAIT, SYNC, QUERY, CLASSES };
static const char *const names[] = {"launch", "gemm",   "dnn",  "comm", "copy",
                                    "memset", "record", "wait", "sync", "query"};
enum { BUCKETS = 256 };
static uint64_t calls[CLASSES], total[CLASSES], bucket[CLASSES][BUCKETS];
static _Thread_local int depth;
static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static void keep(int class, uint64_t ns)
{
    int b = ns ? (int)(8 * log2((double)ns)) : 0;
    if (b >= BUCKETS) b = BUCKETS - 1;
    __atomic_fetch_add(&calls[class], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&total[class], ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&bucket[class][b], 1, __ATOMIC_RELAXED);
}
__attribute__((visibility("default"))) void calls_reset(void)
{
    memset(calls, 0, sizeof calls);
    memset(total, 0, sizeof total);
    memset(bucket, 0, sizeof bucket);
}
static __attribute__((destructor)) void report(void)
{
    const char *out = getenv("CALLS_OUT");
    if (!out || !calls[LAUNCH]) return;
    char path[512];
    snprintf(path, sizeof path, "%s.%d", out, (int)getpid());
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f, "{");
    for (int c = 0; c < CLASSES; c++) {
        fprintf(f, "%s\"%s\": [%llu, %llu, [", c ? ", " : "", names[c],
                (unsigned long long)calls[c], (unsigned long long)total[c]);
        int first = 1;
        for (int b = 0; b < BUCKETS; b++)
            if (bucket[c][b])
                fprintf(f, "%s[%d, %llu]", first ? "" : ", ", b, (unsigned long long)bucket[c][b]),
                    first = 0;
        fprintf(f, "]]");
    }
    fprintf(f, "}\n");
    fclose(f);
}
/* A function of a library that the job has loaded; of CUDA 13, or of CUDA 12. */
static void *find(const char *name)
{
    static const struct {
        const char *prefix, *libraries[2];
    } families[] = {
        {"cublasLt", {"libcublasLt.so.13", "libcublasLt.so.12"}},
        {"cublas", {"libcublas.so.13", "libcublas.so.12"}},
        {"cudnn", {"libcudnn.so.9"}},
        {"nccl", {"libnccl.so.2"}},
        {"cuda", {"libcudart.so.13", "libcudart.so.12"}},
        {"__cuda", {"libcudart.so.13", "libcudart.so.12"}},
        {"cu", {"libcuda.so.1"}},
    };
    size_t family = 0;
    while (strncmp(name, families[family].prefix, strlen(families[family].prefix))) family++;
    for (int i = 0; i < 2 && families[family].libraries[i]; i++) {
        void *handle = dlopen(families[family].libraries[i], RTLD_NOLOAD | RTLD_LAZY),
             *found = handle ? dlsym(handle, name) : NULL;
        if (found) return found;
    }
    fprintf(stderr, "calls: no %s in %s\n", name, families[family].libraries[0]), abort();
}
#define W(class, name, params, args)                       \
    __attribute__((visibility("default"))) int name params \
    {                                                      \
        static int(*real) params;                          \
        if (!real) real = (int(*) params)find(#name);      \
        if (depth) return real args;                       \
        depth = 1;                                         \
        uint64_t begin = now();                            \
        int status = real args;                            \
        keep(class, now() - begin);                        \
        depth = 0;                                         \
        return status;                                     \
    }
typedef struct {
    unsigned x, y, z;
} d3;
typedef void *P;
W(LAUNCH, __cudaLaunchKernel, (P k, d3 g, d3 b, P a, size_t s, P st), (k, g, b, a, s, st))
W(LAUNCH, cudaLaunchKernel, (P k, d3 g, d3 b, P a, size_t s, P st), (k, g, b, a, s, st))
W(LAUNCH, cudaLaunchKernelExC, (P c, P f, P a), (c, f, a))
W(LAUNCH, cuLaunchKernel,
  (P f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, P st,
   P p, P x),
  (f, a, b, c, d, e, g, s, st, p, x))
W(LAUNCH, cuLaunchKernelEx, (P c, P f, P p, P x), (c, f, p, x))
W(GEMM, cublasGemmEx,
  (P h, int ta, int tb, int m, int n, int k, P al, P a, int at, int lda, P b, int bt, int ldb, P be,
   P c, int ct, int ldc, int co, int alg),
  (h, ta, tb, m, n, k, al, a, at, lda, b, bt, ldb, be, c, ct, ldc, co, alg))
W(GEMM, cublasLtMatmul,
  (P h, P d, P al, P a, P ad, P b, P bd, P be, P c, P cd, P o, P od, P alg, P w, size_t ws, P st),
  (h, d, al, a, ad, b, bd, be, c, cd, o, od, alg, w, ws, st))
W(GEMM, cublasSgemm_v2,
  (P h, int ta, int tb, int m, int n, int k, P al, P a, int lda, P b, int ldb, P be, P c, int ldc),
  (h, ta, tb, m, n, k, al, a, lda, b, ldb, be, c, ldc))
W(DNN, cudnnBackendExecute, (P h, P p, P v), (h, p, v))
W(COMM, ncclAllReduce, (P s, P r, size_t n, int t, int o, P c, P st), (s, r, n, t, o, c, st))
W(COMM, ncclAllGather, (P s, P r, size_t n, int t, P c, P st), (s, r, n, t, c, st))
W(COMM, ncclReduceScatter, (P s, P r, size_t n, int t, int o, P c, P st), (s, r, n, t, o, c, st))
W(COPY, cudaMemcpyAsync, (P d, P s, size_t n, int k, P st), (d, s, n, k, st))
W(MEMSET, cudaMemsetAsync, (P d, int v, size_t n, P st), (d, v, n, st))
W(RECORD, cudaEventRecord, (P e, P st), (e, st))
W(RECORD, cudaEventRecordWithFlags, (P e, P st, unsigned f), (e, st, f))
W(WAIT, cudaStreamWaitEvent, (P st, P e, unsigned f), (st, e, f))
W(SYNC, cudaStreamSynchronize, (P st), (st))
W(SYNC, cudaDeviceSynchronize, (void), ())
W(QUERY, cudaEventQuery, (P e), (e))
W(QUERY, cudaStreamQuery, (P s), (s))
