/* host_api.h - the functions of the interceptor that the values library calls, and no others.
 *
 * Why it exists: the interceptor is preloaded C without dependencies; this library is C++ built
 * against one version of torch. They meet in a few C functions that are found by name at start, so
 * that either can be built and tested without the other. */
#ifndef PHANTORA_VALUES_HOST_API_H
#define PHANTORA_VALUES_HOST_API_H
#include <cstddef>
#include <cstdint>

namespace phantora
{

/* Tensors that span more than this have no values. Equals PH_SMALL_BYTES in base/memory.h. */
constexpr size_t kSmallBytes = 65536;

/* Rows of bytes are pickled objects for other ranks. They have values up to this size. Equals
 * PH_OBJECT_BYTES. */
constexpr size_t kObjectBytes = 16 << 20;

/* Integers and booleans steer jobs (routes of tokens, masks, labels). Unless the policy is zeros,
 * they have values up to this size: the map of 8,192 tokens to 256 experts as int32. Equals
 * PH_INDEX_BYTES. */
constexpr size_t kIndexBytes = 8 << 20;

/* Host tensors from this size on can be hollow. Equals PH_HOST_LARGE. */
constexpr size_t kHollowBytes = 1 << 20;

struct HostApi {
    int (*is_device)(const void *pointer);
    void (*pause)(); /* from here on this thread's CPU time is the simulator's, not the job's */
    void (*resume)();
    /* Must be called before device memory is read or written here: a small collective's result for
     * these bytes may be pending. Within a pause, waiting for it does not advance the job's time.
     */
    void (*before_read)(const void *pointer, size_t bytes);
    void (*mark_dirty)(const void *pointer, size_t bytes); /* device memory that is written here */
    /* whether nothing was ever written there; may wait as before_read does */
    int (*is_clean)(const void *pointer, size_t bytes);
    void (*mark_undefined)(const void *pointer, size_t bytes); /* nothing computed these bytes */
    void (*mark_defined)(const void *pointer, size_t bytes);   /* they hold what a GPU would hold */
    int (*any_undefined)(const void *pointer, size_t bytes);
    void (*chosen)(); /* the policy chose a result */
    bool balanced;    /* the policy is --values balanced or replay, not zeros */
    /* Only with --values replay: whether this occurrence of a replay key (replay.h) has a recorded
     * value, and its bytes. */
    int (*replay)(const char *replay_key, int wanted, const void **value, size_t *bytes,
                  int *dtype);
    void (*copy_begins)();
    /* Makes a large result zero. Returns 0 when a copy since copy_begins has given it values, which
     * stay. */
    int (*discard)(void *pointer, size_t bytes);
    void (*operator_begin)(const char *name, uint64_t input_bytes, uint32_t shapes,
                           const int64_t *dims, const uint32_t *ranks);
    void (*operator_end)();
    /* Optional. Device-to-host copies of `bytes` bytes by this thread read this value instead of
     * device memory, until scalar_readback(nullptr, 0). A value of 8 bytes also serves copies of 4.
     */
    /* exact: computed from defined operands */
    void (*scalar_readback)(const void *value, size_t bytes, int exact);
    /* optional: an operator could not be run */
    void (*failed)(const char *operator_name, const char *reason);
    /* CUDA graphs; optional, all three or none. How many captures are under way; whether a stream
     * is being captured; and what to call, in order, at every launch of its graph, with `release`
     * for when the graph is gone. */
    int (*captures)();
    int (*capture_check)(void *stream);
    void (*capture_append)(void *stream, void (*run)(void *data, void *stream),
                           void (*release)(void *data), void *data);
    /* A leader: its GPU computes, so operators are only named. Of the functions above it has
     * pause, resume, operator_begin and operator_end, of those below all. */
    bool observe_only;
    /* Only in a leader that records values: keeps a result of its GPU. Without bytes it is only
     * counted. */
    void (*record)(const char *replay_key, const void *device, size_t bytes, int dtype,
                   void *stream);
    int (*measuring)(); /* whether this thread's CPU time counts as the job's now */
    /* Between the two this thread observes an operator, and its time is not the job's. The `first`
     * of our observers to see the operator also accounts for PyTorch's own work for observers. */
    void (*observe_begin)(int first);
    void (*observe_end)();
    void (*step_ended)(); /* optional: an optimizer has stepped */
    /* optional: the allocator's peaks in bytes, since the job has last reset them */
    void (*report_peaks)(uint64_t allocated, uint64_t reserved);
    /* What holds memory (modules.h); all or none, and none in a leader. Functions that say more are
     * in simulated/memory/holders.c. */
    int (*memory_watched)();
    uint32_t (*memory_name)(const char *name);
    uint32_t (*memory_place)(int kind, uint32_t name);
    void (*memory_back)(uint32_t before);
    uint32_t (*memory_module)();
    void (*memory_settle)();
    /* Hollow host tensors (hollow.h); all or none, and none in a leader. */
    void *(*host_alloc)(size_t bytes); /* nullptr: take ordinary memory */
    void (*host_free)(void *block);
    int (*is_block)(const void *pointer);
    int (*hollows)(); /* whether large floats are hollow from here on */
    int (*any_hollow)(const void *pointer, size_t bytes);
    int (*is_new)(const void *pointer, size_t bytes); /* the job has not written there yet */
    void (*make_hollow)(void *pointer, size_t bytes);
    void (*clear)(void *pointer, size_t bytes); /* zeros, which are known */
    void (*written)(const void *pointer, size_t bytes);
    void (*read_hollow)();       /* a result of hollow tensors is elsewhere now */
    void (*charge)(uint64_t ns); /* the host time of what was skipped */
};

extern HostApi host;

/* Fills `host`. False when a function that is not optional is missing. */
bool find_host_api();

/* Fills what concerns host tensors. False when the interceptor has none of it. */
bool find_hollow_api();

/* While it lives, time is the simulator's, not the job's. */
struct Paused {
    Paused() { host.pause(); }
    ~Paused() { host.resume(); }
    Paused(const Paused &) = delete;
    Paused &operator=(const Paused &) = delete;
};

/* While it lives, this thread observes an operator: its time is the simulator's, not the job's.
 * A pause costs two system calls, and this none, since every operator needs one. A pause within it
 * is not counted twice. One per thread at a time. `first`: see observe_begin. */
class Observing
{
public:
    explicit Observing(bool first = true) : measured_(host.measuring && host.measuring())
    {
        if (measured_) host.observe_begin(first);
    }
    ~Observing()
    {
        if (measured_) host.observe_end();
    }
    Observing(const Observing &) = delete;
    Observing &operator=(const Observing &) = delete;

private:
    bool measured_;
};

} // namespace phantora
#endif
