/* backend.h - the interface between the core and the GPU behind it.
 *
 * Why it exists: two libraries share one core. In libphantora.so the GPU is simulated; in
 * libphantora-leader.so it is real (docs/leading.md). This table holds what differs between them.
 * Each library defines one constant table: simulated/backend.c, leader/backend.c.
 *
 * Rule: this header includes no other header of the project, so every layer may use it. The
 * comment on a function says when the function may be NULL. */
#ifndef PH_BACKEND_H
#define PH_BACKEND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_allocation;
struct ph_operation;
struct ph_pack;
struct ph_stream;

struct ph_backend {
    /* ---- the process ---- */
    /* ph_env: a variable PREFIX_X overrides PHANTORA_X; NULL: no prefix */
    const char *own_prefix;
    bool leads;             /* HELLO says that this process is a leader */
    bool (*measures)(void); /* whether this leader measures kernels; NULL: never */
    void (*joined)(void);   /* called once by ph_touch, after the process has joined the run */
    void (*hub_wait)(bool begins); /* called around each wait for the hub; may be NULL */
    const char *without_values;    /* what is missing without the values library */

    /* ---- streams and devices ---- */
    struct ph_stream *(*stream)(void *handle); /* the stream of a handle; NULL: none */
    /* Called when a stream of the device is made, when a kernel is launched on it, and when a
     * communicator is made. The first call for a device takes memory on it. NULL where a real
     * driver takes that memory. */
    void (*device_used)(int device);
    void (*code_loaded)(int device);
    void (*communicator_made)(int device);

    /* ---- memory ---- */
    /* finds the allocation that holds a pointer; false: neither GPU memory nor pinned memory */
    bool (*find)(const void *pointer, struct ph_allocation *found);

    /* ---- the bytes of communicator operations (nccl/nccl.h) ---- */
    struct {
        /* Why the operation must not be issued on its stream in the stream's current state: one
         * line, already shown to the user. NULL: it may be issued. */
        const char *(*refused)(const struct ph_operation *op);
        /* Packs the send buffer if its values are carried, else nil. Called once, before the
         * operation is sent. */
        void (*payload)(struct ph_pack *pack, const struct ph_operation *op);
        /* Whether the operation sends values that nothing has computed. Called after `payload`. */
        bool (*undefined)(const struct ph_operation *op);
        /* Handles the receive buffer. Called after operation `index` of the launch has been sent.
         * `vertex` is the vertex at which the launch ends. */
        void (*result)(const struct ph_operation *op, uint64_t vertex, uint32_t index);
        /* reads a scalar factor; false: it cannot be read */
        bool (*scalar)(void *value, const void *scalar, size_t bytes, bool on_device);
        void *(*alloc)(size_t bytes); /* NULL: out of memory */
        bool (*free)(void *pointer);
    } nccl;

    /* ---- cuDNN ---- */
    /* destroys a descriptor's counterpart in NVIDIA's library; NULL: there are no counterparts */
    void (*cudnn_destroy)(void *real);
};

extern const struct ph_backend ph_backend;
#endif
