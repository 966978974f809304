/* nccl/nccl.h - communicators and their operations.
 *
 * Why it exists: both backends share NCCL's interface (nccl/nccl.c), but not its data. A simulated
 * rank's device memory is in the process, and a leader's is on a GPU. So the backend handles the
 * bytes (struct ph_backend, `nccl`). */
#ifndef PH_NCCL_H
#define PH_NCCL_H
#include "base/protocol.gen.h"
#include "time/timeline.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_comm {
    uint32_t magic;
    int rank, size, device;
    struct ph_launches launches;
};
struct ph_operation {
    int kind, dtype, redop, peer; /* enum ph_collective, ph_data_type, ph_reduction */
    const void *send;
    void *recv;
    /* bytes: as the wire protocol counts them; recv_bytes 0: this rank receives nothing */
    size_t bytes, send_bytes, recv_bytes;
    struct ph_comm *comm;
    void *stream;
    struct ph_operation *next;
    /* The factor of a pre-multiplied sum. The redop may have been destroyed when a graph repeats
     * the operation. */
    double factor;
};

extern const size_t ph_nccl_type_bytes[PH_TYPES];
bool ph_nccl_carries(const struct ph_operation *op); /* its bytes travel through the hub */
/* Whether other ranks' data change its receive buffer. A broadcast's root already has its own. */
bool ph_nccl_receives(const struct ph_operation *op);
bool ph_nccl_premultiplies(const struct ph_operation *op); /* ncclRedOpCreatePreMulSum */
void ph_nccl_premultiply(const struct ph_operation *op, void *data);
#endif
