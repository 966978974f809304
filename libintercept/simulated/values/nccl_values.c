/* nccl_values.c - the bytes of communicator operations in a simulated rank.
 *
 * Why it exists: small buffers hold values, at their own addresses in this process. Large buffers
 * hold none. */
#include "nccl/operation_bytes.h"
#include "base/device.h"
#include "base/log.h"
#include "simulated/memory/memory.h"
#include "simulated/values/defined.h"
#include "simulated/values/dirty.h"
#include "simulated/values/payload.h"
#include <stdlib.h>
#include <string.h>

void ph_nccl_payload(struct ph_pack *pack, const struct ph_operation *op)
{
    if (ph_nccl_receives(op) && !ph_nccl_carries(op) && ph_is_device(op->recv)) {
        ph_discard(op->recv, op->recv_bytes);
        ph_mark_undefined(op->recv, op->recv_bytes);
    }
    if (!op->send || !op->send_bytes || !ph_nccl_carries(op)) {
        ph_pack_nil(pack);
        return;
    }
    ph_payload_settle(op->send, op->send_bytes);
    if (ph_is_clean(op->send, op->send_bytes) || ph_all_zero(op->send, op->send_bytes))
        ph_pack_nil(pack);
    else if (ph_nccl_premultiplies(op)) {
        void *copy = malloc(op->send_bytes);
        if (!copy) ph_die("out of host memory");
        memcpy(copy, op->send, op->send_bytes);
        ph_nccl_premultiply(op, copy);
        ph_pack_bin(pack, copy, op->send_bytes);
        free(copy);
    } else
        ph_pack_bin(pack, op->send, op->send_bytes);
}

bool ph_nccl_undefined(const struct ph_operation *op)
{
    return op->send && op->send_bytes && ph_nccl_carries(op) &&
           ph_any_undefined(op->send, op->send_bytes);
}

const char *ph_nccl_refused(const struct ph_operation *op)
{
    (void)op;
    return NULL; /* a captured operation is issued at each launch (nccl.c) */
}

void ph_nccl_result(const struct ph_operation *op, uint64_t vertex, uint32_t index)
{
    if (ph_nccl_receives(op) && ph_nccl_carries(op))
        ph_payload_expect(op->recv, op->recv_bytes, vertex, index);
}

bool ph_nccl_scalar(void *value, const void *scalar, size_t bytes, bool on_device)
{
    (void)on_device; /* device scalars are small: their value is at their address */
    if (ph_is_device(scalar)) ph_payload_settle(scalar, bytes);
    memcpy(value, scalar, bytes);
    return true;
}

void *ph_nccl_alloc(size_t bytes) { return ph_device_alloc(ph_device_current(), bytes); }

bool ph_nccl_free(void *pointer) { return ph_device_free(pointer); }
