/* nccl/operation_bytes.h - the bytes of communicator operations. Each backend has its own of these
 * functions, as backend.h says (struct ph_backend, `nccl`): leader/gpu/nccl_data.c and
 * simulated/values/nccl_values.c. */
#ifndef PH_OPERATION_BYTES_H
#define PH_OPERATION_BYTES_H
#include "base/msgpack.h"
#include "nccl/nccl.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *ph_nccl_refused(const struct ph_operation *op);
void ph_nccl_payload(struct ph_pack *pack, const struct ph_operation *op);
bool ph_nccl_undefined(const struct ph_operation *op);
void ph_nccl_result(const struct ph_operation *op, uint64_t node, uint32_t index);
bool ph_nccl_scalar(void *value, const void *scalar, size_t bytes, bool on_device);
void *ph_nccl_alloc(size_t bytes);
bool ph_nccl_free(void *pointer);
#endif
