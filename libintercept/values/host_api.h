/* face.h - what the values library needs of the interceptor, and nothing else of it.
 *
 * Why it exists: the interceptor is preloaded C without dependencies, this library is C++ against
 * one torch; they meet in a handful of C functions found by name at start, so that either can be
 * built and tested without the other. */
#ifndef PHANTORA_VALUES_FACE_H
#define PHANTORA_VALUES_FACE_H
#include <cstddef>
#include <cstdint>

namespace phantora
{

/* Tensors that span more than this have no values. Equals PH_SMALL_BYTES in
 * core.h. */
constexpr size_t kSmallBytes = 65536;

/* Rows of bytes are pickled objects on their way to other ranks: up to this size they have values.
 * Equals PH_OBJECT_BYTES. */
constexpr size_t kObjectBytes = 16 << 20;

/* Integers and booleans steer jobs (routes of tokens, masks, labels): up to this size they have
 * values, unless the policy is zeros. The map of 8,192 tokens to 256 experts as int32. Equals
 * PH_INDEX_BYTES. */
constexpr size_t kIndexBytes = 8 << 20;

struct Face {
    int (*is_device)(const void *pointer);
    void (*pause)(); /* from here on this thread's CPU time is the simulator's, not the job's */
    void (*resume)();
    /* Must be called before device memory is read or written here: a small collective may still owe
     * its result to these bytes. Within a pause, asking for it passes none of the job's time. */
    void (*before_read)(const void *pointer, size_t bytes);
    void (*written)(const void *pointer, size_t bytes); /* device memory that is written here */
    /* nothing was ever written there; may wait as before_read does */
    int (*absent)(const void *pointer, size_t bytes);
    void (*unknown)(const void *pointer, size_t bytes); /* nothing computed these bytes */
    void (*known)(const void *pointer, size_t bytes);   /* they are what a GPU's would be */
    int (*any_unknown)(const void *pointer, size_t bytes);
    void (*chosen)(); /* the policy chose a result */
    bool balanced;    /* the policy is --values balanced or replay, not zeros */
    /* Only with --values replay: whether there is an answer to a question that is asked now
     * (replay.h), and its bytes. */
    int (*replay)(const char *question, int wanted, const void **value, size_t *bytes, int *dtype);
    void (*copy_begins)();
    /* Makes a large result zero; 0 when a copy since copy_begins has brought it values, which stay.
     */
    int (*forget)(void *pointer, size_t bytes);
    void (*operator_begin)(const char *name, uint64_t input_bytes, uint32_t shapes,
                           const int64_t *dims, const uint32_t *ranks);
    void (*operator_end)();
    /* Optional. Device-to-host copies of `bytes` bytes by this thread yield these bytes instead of
     * what device memory holds, until plant(nullptr, 0). A planted number of 8 bytes also answers
     * copies of 4. */
    /* exact: computed of operands that are known */
    void (*plant)(const void *value, size_t bytes, int exact);
    /* optional: an operator could not be run */
    void (*failed)(const char *operator_name, const char *reason);
    /* Optional, all three or none: CUDA graphs. How many captures are under way; whether a stream
     * is captured; what is to be called, in order, at every launch of its graph, and `release` once
     * the graph is gone. */
    int (*captures)();
    int (*capture_check)(void *stream);
    void (*capture_append)(void *stream, void (*run)(void *data, void *stream),
                           void (*release)(void *data), void *data);
    /* a leader: its GPU computes, so operators are named and nothing else of this is there, but: */
    bool observe_only;
    /* Only in a leader that records values: keeps a result of its GPU's. Without bytes it is only
     * counted. */
    void (*record)(const char *question, const void *device, size_t bytes, int dtype, void *stream);
    int (*recording)();  /* whether this thread's own time is being recorded */
    int64_t (*job_ns)(); /* how much of it has passed so far and belongs to no call yet */
    void (*weighed)(int64_t job_ns); /* what it is to be again, after what was only tried */
    void (*observed)(uint64_t ns);   /* that much of it is ours */
};

extern Face face;

/* Fills `face`; false when a function that is not optional is missing. */
bool find_face();

/* Simulator's time, not the job's. */
struct Paused {
    Paused() { face.pause(); }
    ~Paused() { face.resume(); }
};

} // namespace phantora
#endif
