/* nccl.h - what a communicator operation is, and what happens to its bytes.
 *
 * Why it exists: NCCL's interface (nccl.c) is one, but bytes are not: a simulated rank's device
 * memory lies in the process (simulated/values/nccl_values.c), a leader's on a GPU
 * (leader/gpu/nccl_data.c).
 */
#ifndef PH_NCCL_H
#define PH_NCCL_H
#include "base/core.h"

struct ph_comm {
    uint32_t magic;
    int64_t number; /* the hub's */
    int rank, size, device;
};
struct ph_operation {
    int kind, dtype, redop, peer; /* enum ph_collective, ph_data_type, ph_reduction */
    const void *send;
    void *recv;
    /* bytes: as the wire protocol counts; 0 recv_bytes: this rank gets nothing */
    size_t bytes, send_bytes, recv_bytes;
    struct ph_comm *comm;
    void *stream;
    struct ph_operation *next;
    /* of a pre-multiplied sum, whose redop may be gone when a graph repeats the operation */
    double factor;
};

extern const size_t ph_nccl_type_bytes[PH_TYPES];
bool ph_nccl_carries(const struct ph_operation *op);       /* its bytes travel through the hub */
bool ph_nccl_premultiplies(const struct ph_operation *op); /* ncclRedOpCreatePreMulSum */
void ph_nccl_premultiply(const struct ph_operation *op, void *data);

/* ---- simulated/values/nccl_values.c, leader/gpu/nccl_data.c ---- */
/* Why the operation must not be issued on its stream as that stands, one line, of which the user
 * has been told; NULL: it may be. */
const char *ph_nccl_refused(const struct ph_operation *op);
/* Packs the send buffer if it is carried, else nil. Called before the operation is sent, once. */
void ph_nccl_payload(struct ph_pack *pack, const struct ph_operation *op);
/* Whether what it sends are values that nothing computed. After ph_nccl_payload. */
bool ph_nccl_unknown(const struct ph_operation *op);
/* Sees to the receive buffer: operation `index` of the launch that ends at `node` has been sent. */
void ph_nccl_result(const struct ph_operation *op, uint64_t node, uint32_t index);
/* false: it cannot be read */
bool ph_nccl_scalar(void *value, const void *scalar, size_t bytes, bool on_device);
void *ph_nccl_alloc(size_t bytes); /* NULL: out of memory */
bool ph_nccl_free(void *pointer);
#endif
