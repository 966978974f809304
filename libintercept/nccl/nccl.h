/* nccl/nccl.h - what a communicator operation is.
 *
 * Why it exists: NCCL's interface (nccl/nccl.c) is one, but its bytes are not: a simulated rank's
 * device memory lies in the process, a leader's on a GPU. So bytes are the backend's affair
 * (struct ph_backend, `nccl`). */
#ifndef PH_NCCL_H
#define PH_NCCL_H
#include "base/protocol.gen.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
#endif
