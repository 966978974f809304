/* reads.c - copies to the host of device memory that is partly, not at all or wholly defined, as
 * `name COUNT` lines.
 *
 * Why it exists: the report counts reads of undefined bytes, so each kind of copy must count once
 * or not at all. COUNT is how much the counter in this process's rank statistics has grown since
 * the previous line. */
#include "conditions.h"
#include <glob.h>

int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaMemcpy(void *, const void *, size_t, int),
    cudaMemset(void *, int, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *),
    cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamSynchronize(void *),
    cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **),
    cudaGraphInstantiateWithFlags(void **, void *, unsigned long long),
    cudaGraphLaunch(void *, void *);
int cuMemcpyDtoHAsync_v2(void *, uintptr_t, size_t, void *);
void phantora_values_mark_undefined(const void *, size_t);

enum {
    TO_DEVICE = 1,
    TO_HOST = 2,
    WITHIN = 3,
    SMALL = 4096,
    LARGE = 16 << 20,
    OFFSET_OF_COUNT = 112
};

static uint64_t counted(void)
{
    glob_t found;
    char pattern[4096];
    uint64_t count = UINT64_MAX;
    snprintf(pattern, sizeof pattern, "%s/ranks/*", getenv("PHANTORA_RUN_DIR"));
    if (glob(pattern, 0, NULL, &found) == 0) {
        FILE *page = fopen(found.gl_pathv[0], "r");
        if (found.gl_pathc != 1 || !page || fseek(page, OFFSET_OF_COUNT, SEEK_SET) ||
            fread(&count, 8, 1, page) != 1)
            exit(3);
        fclose(page);
        globfree(&found);
    }
    return count;
}

static void say(const char *name)
{
    static uint64_t before;
    uint64_t now = counted();
    printf("%s %llu\n", name, (unsigned long long)(now - before));
    before = now;
}

static void run(void)
{
    char *a, *b, *large, *wide, host[SMALL], *far = malloc(LARGE);
    void *s, *graph, *exec;
    memset(host, 1, sizeof host);
    memset(far, 1, LARGE);
    CALL(cudaSetDevice, 0);
    if (CALL(cudaMalloc, (void **)&a, SMALL) | CALL(cudaMalloc, (void **)&b, SMALL) |
        CALL(cudaMalloc, (void **)&large, LARGE) | CALL(cudaMalloc, (void **)&wide, LARGE) |
        CALL(cudaStreamCreateWithFlags, &s, 1))
        exit(1);
    CALL(cudaMemcpy, a, host, SMALL, TO_DEVICE);
    CALL(cudaMemcpy, host, a, SMALL, TO_HOST);
    say("written_by_the_host");
    phantora_values_mark_undefined(a, SMALL); /* as when PyTorch's allocator returns a block */
    CALL(cudaMemcpy, host, a, 1, TO_HOST);
    say("nothing_known");
    CALL(cudaMemcpyAsync, host, a, SMALL, TO_HOST, s);
    CALL(cuMemcpyDtoHAsync_v2, host, (uintptr_t)a, SMALL, s);
    CALL(cudaStreamSynchronize, s);
    say("two_more_copies");
    CALL(cudaMemcpy2D, host, 64, a, 128, 64, 16, TO_HOST);
    say("many_rows_are_one_copy");
    CALL(cudaMemset, a + 100, 0, 200);
    CALL(cudaMemcpy, host, a + 100, 200, TO_HOST);
    say("filled");
    CALL(cudaMemcpy, host, a + 100, 201, TO_HOST);
    say("a_byte_beyond");
    CALL(cudaMemcpy, host, a + 99, 2, TO_HOST);
    say("a_byte_before");
    CALL(cudaMemset, b, 7, SMALL);
    CALL(cudaMemcpy, b, a, SMALL, WITHIN);
    say("within_the_device");
    CALL(cudaMemcpy, host, b, 64, TO_HOST);
    say("the_copy_of_what_is_not_known");
    CALL(cudaMemcpy, host, b + 100, 200, TO_HOST);
    say("the_copy_as_a_whole");
    CALL(cudaMemset, large, 0, LARGE);
    CALL(cudaMemcpy, far, large, LARGE, TO_HOST);
    say("large_zeros");
    CALL(cudaMemset, large + 5000000, 5, 3);
    CALL(cudaMemcpy, far, large, LARGE, TO_HOST);
    say("large_and_known");
    size_t sum = 0;
    for (size_t i = 0; i < LARGE; i++) sum += (size_t)far[i];
    printf("large_values %zu %d\n", sum, far[5000002]);
    phantora_values_mark_undefined(large + 9000000, 4);
    CALL(cudaMemcpy, far, large, LARGE, TO_HOST);
    say("large_but_for_a_number");
    CALL(cudaMemcpy, wide, far, LARGE, TO_DEVICE);
    say("too_large_to_be_carried");
    CALL(cudaMemcpy, host, wide, 8, TO_HOST);
    say("and_so_lost");
    if (CALL(cudaStreamBeginCapture, s, 0) | CALL(cudaMemcpyAsync, host, a, SMALL, TO_HOST, s) |
        CALL(cudaStreamEndCapture, s, &graph) |
        CALL(cudaGraphInstantiateWithFlags, &exec, graph, 0))
        exit(2);
    say("captured");
    CALL(cudaGraphLaunch, exec, s);
    CALL(cudaGraphLaunch, exec, s);
    CALL(cudaStreamSynchronize, s);
    say("launched_twice");
}
