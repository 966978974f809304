/* backend.h - the interface between the core and what answers for the GPU.
 *
 * Why it exists: two libraries are made of one core. In libphantora.so the GPU is simulated; in
 * libphantora-leader.so it is real (docs/leading.md). What differs between them is this table. Each
 * library fills in one, constant and known when it is loaded: simulated/backend.c,
 * leader/backend.c.
 *
 * Rule: this header includes no other of the project, so that every layer may use it. A function
 * that a backend may leave out says so: it is NULL then. */
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
    /* ph_env: a variable PREFIX_X goes before PHANTORA_X; NULL: none does */
    const char *own_prefix;
    bool leads;                    /* HELLO tells the hub who leads */
    bool (*measures)(void);        /* this leader measures kernels; NULL: never */
    void (*joined)(void);          /* the process has joined the run: called once, by ph_touch */
    void (*hub_wait)(bool begins); /* around each wait for the hub; or NULL */
    const char *without_values;    /* what a job lacks without the values library */

    /* ---- streams and devices ---- */
    struct ph_stream *(*stream)(void *handle); /* the one that a handle means; NULL: none */
    /* a stream of the device was made; a kernel is launched on it; a communicator was made. Each
     * takes memory of the device the first time. NULL where a real driver takes it. */
    void (*device_used)(int device);
    void (*code_loaded)(int device);
    void (*communicator_made)(int device);

    /* ---- memory ---- */
    /* the allocation around a pointer; false: none of the GPU's, and not pinned */
    bool (*find)(const void *pointer, struct ph_allocation *found);

    /* ---- the bytes of communicator operations (nccl/nccl.h) ---- */
    struct {
        /* Why the operation must not be issued on its stream as that stands: one line, of which
         * the user has been told. NULL: it may be. */
        const char *(*refused)(const struct ph_operation *op);
        /* Packs the send buffer if it is carried, else nil. Called once, before the operation is
         * sent. */
        void (*payload)(struct ph_pack *pack, const struct ph_operation *op);
        /* Whether it sends values that nothing computed. Called after `payload`. */
        bool (*undefined)(const struct ph_operation *op);
        /* Sees to the receive buffer: operation `index` of the launch that ends at `node` has been
         * sent. */
        void (*result)(const struct ph_operation *op, uint64_t node, uint32_t index);
        /* reads a scalar factor; false: it cannot be read */
        bool (*scalar)(void *value, const void *scalar, size_t bytes, bool on_device);
        void *(*alloc)(size_t bytes); /* NULL: out of memory */
        bool (*free)(void *pointer);
    } nccl;

    /* ---- cuDNN ---- */
    /* destroys the twin that a descriptor has in NVIDIA's library; NULL: there are none */
    void (*cudnn_destroy)(void *real);
};

extern const struct ph_backend ph_backend;
#endif
