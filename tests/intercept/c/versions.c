/* versions.c - the functions of the runtime that differ between CUDA's majors, called as a program
 * of one major (MAJOR) calls them; `key value` lines.
 *
 * Why it exists: the dynamic linker chooses between our definitions by the version that this
 * program asks for, which is that of the runtime it is linked against. */
#include "conditions.h"

int cudaRuntimeGetVersion(int *), cudaDriverGetVersion(int *);
int cudaGetDriverEntryPoint(const char *, void **, unsigned long long, int *);
int cudaPointerGetAttributes(void *, const void *);
int cudaMalloc(void **, size_t), cudaMemsetAsync(void *, int, size_t, void *);
int cudaStreamCreateWithFlags(void **, unsigned), cudaStreamBeginCapture(void *, int),
    cudaStreamEndCapture(void *, void **);
#if MAJOR == 12
int cudaGetDeviceProperties_v2(void *, int);
int cudaGraphGetEdges(void *, void **, void **, size_t *);
int cudaGraphGetEdges_v2(void *, void **, void **, void *, size_t *);
int cudaGraphNodeGetDependencies(void *, void **, size_t *);
int cudaGraphNodeGetDependencies_v2(void *, void **, void *, size_t *);
int cudaStreamGetCaptureInfo(void *, int *, unsigned long long *);
int cudaStreamGetCaptureInfo_v2(void *, int *, unsigned long long *, void **, void ***, size_t *);
int cudaStreamGetCaptureInfo_v3(void *, int *, unsigned long long *, void **, void ***, void **,
                                size_t *);
#else
int cudaGetDeviceProperties(void *, int);
int cudaGraphGetEdges(void *, void **, void **, void *, size_t *);
int cudaGraphNodeGetDependencies(void *, void **, void *, size_t *);
int cudaStreamGetCaptureInfo(void *, int *, unsigned long long *, void **, void ***, void **,
                             size_t *);
#endif
/* By name, a program finds them in the runtime that it has loaded. */
#define FIND(function) \
    ((__typeof__(&function))(by_name ? dlsym(dlopen(RUNTIME, RTLD_LAZY), #function) : function))

enum { ROOM = 2048, UNTOUCHED = 0xa5 };
static unsigned char bytes[ROOM];

static int written(void) /* the number of bytes that the call has written */
{
    int last = ROOM;
    while (last > 0 && bytes[last - 1] == UNTOUCHED) last--;
    return last;
}

static void run(void)
{
    int version = -1, driver = -1, status = -1;
    void *pointer = NULL, *stream = NULL, *graph = NULL, *found = NULL;
    FIND(cudaRuntimeGetVersion)(&version);
    FIND(cudaDriverGetVersion)(&driver);
    printf("runtime %d\ndriver %d\n", version, driver);
    FIND(cudaGetDriverEntryPoint)("cuStreamGetCaptureInfo", &found, 0, &status);
    printf("entry %d %d\n", status, found == dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v3"));

    memset(bytes, UNTOUCHED, ROOM);
#if MAJOR == 12
    status = FIND(cudaGetDeviceProperties_v2)(bytes, 0);
#else
    status = FIND(cudaGetDeviceProperties)(bytes, 0);
#endif
    printf("properties_rc %d\nproperties_bytes %d\nproperties ", status, written());
    for (int i = 0; i < ROOM; i++) printf("%02x", bytes[i]);
    printf("\n");

    cudaMalloc(&pointer, 4096);
    memset(bytes, UNTOUCHED, ROOM);
    status = FIND(cudaPointerGetAttributes)(bytes, pointer);
    printf("pointer_rc %d\npointer_bytes %d\npointer_type %d\n", status, written(), *(int *)bytes);

    /* two fills, so two ops and one edge */
    cudaStreamCreateWithFlags(&stream, 1);
    cudaStreamBeginCapture(stream, 2);
    cudaMemsetAsync(pointer, 0, 4096, stream);
    cudaMemsetAsync(pointer, 0, 4096, stream);
    unsigned long long id = 0;
    void *from[4] = {0}, *to[4] = {0}, *before[4] = {0}, **tails = NULL, *building = NULL;
    size_t edges = 4, dependencies = 4, count = 77;
    int capturing = -1;
#if MAJOR == 12
    status = FIND(cudaStreamGetCaptureInfo)(stream, &capturing, &id);
    printf("info_v1 %d %d %d\n", status, capturing, id != 0);
    status = FIND(cudaStreamGetCaptureInfo_v2)(stream, &capturing, &id, &building, &tails, &count);
    printf("info_v2 %d %d %zu\n", status, capturing, count), count = 77;
    status =
        FIND(cudaStreamGetCaptureInfo_v3)(stream, &capturing, &id, &building, &tails, NULL, &count);
#else
    status =
        FIND(cudaStreamGetCaptureInfo)(stream, &capturing, &id, &building, &tails, NULL, &count);
#endif
    printf("info %d %d %d %zu\n", status, capturing, id != 0, count);
    cudaStreamEndCapture(stream, &graph);
#if MAJOR == 12
    status = FIND(cudaGraphGetEdges_v2)(graph, from, to, NULL, &edges);
    printf("edges_v2 %d %zu\n", status, edges), edges = 4;
    status = FIND(cudaGraphGetEdges)(graph, from, to, &edges);
    printf("edges %d %zu\n", status, edges);
    status = FIND(cudaGraphNodeGetDependencies_v2)(to[0], before, NULL, &dependencies);
    printf("dependencies_v2 %d %zu\n", status, dependencies), dependencies = 4;
    status = FIND(cudaGraphNodeGetDependencies)(to[0], before, &dependencies);
#else
    status = FIND(cudaGraphGetEdges)(graph, from, to, NULL, &edges);
    printf("edges %d %zu\n", status, edges);
    status = FIND(cudaGraphNodeGetDependencies)(to[0], before, NULL, &dependencies);
#endif
    printf("dependencies %d %zu %d\n", status, dependencies, before[0] == from[0]);
}
