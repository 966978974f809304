"""How a trace names GPU work, and what it says about it.

Why it exists: HTA, Perfetto and `trace diff` go by names, so names are those of real traces where
they can be known. Kernels have their demangled names, copies and fills Kineto's wording, collectives
the names of NCCL's kernels. The kernel inside a library call (cuBLAS, cuDNN) cannot be known, so its
name states the call, and that it is simulated.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgpack

from phantora_ns.kernels.binary.names import demangle
from phantora_ns.kernels import graph_forms
from phantora_ns.kernels.estimators import cudnn_graphs
from phantora_ns.protocol import Collective, LogComm, MemoryKind, MemoryOp, SignatureKind
from phantora_ns.trace.log import Signature
from phantora_ns.trace.times import Launch

SIMULATED = "[simulated]"
# By cudaDataType.
_GEMM_TYPES = {
    0: "fp32",
    1: "fp64",
    2: "fp16",
    3: "int8",
    4: "complex64",
    5: "complex128",
    10: "int32",
    14: "bf16",
    28: "fp8e4m3",
    29: "fp8e5m2",
}
# By cudnnDataType.
_DNN_TYPES = {
    0: "fp32",
    1: "fp64",
    2: "fp16",
    9: "bf16",
    12: "fp8e4m3",
    13: "fp8e5m2",
}
_TRANSPOSED = "NTC"
_PLACES = ("Pageable", "Pinned", "Device", "Device")  # by MemoryKind
_CONVOLUTIONS = {
    cudnn_graphs.CONVOLUTION_FORWARD: "fprop",
    cudnn_graphs.CONVOLUTION_DATA: "dgrad",
    cudnn_graphs.CONVOLUTION_FILTER: "wgrad",
}
# NCCL builds one kernel per collective, type, and tree or not. It always names the kernel after the
# LL protocol and the sum, and selects the real protocol inside it. Signed integers share the kernels
# of unsigned ones (src/device/generate.py of NCCL 2.28, best_kernel and equivalent_primary). One
# kernel serves all point-to-point operations.
_NCCL = {
    Collective.ALL_REDUCE: "AllReduce",
    Collective.ALL_GATHER: "AllGather",
    Collective.REDUCE_SCATTER: "ReduceScatter",
    Collective.BROADCAST: "Broadcast",
    Collective.REDUCE: "Reduce",
}
_NCCL_REDUCES = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)
# By ncclDataType_t.
_NCCL_TYPES = (
    "u8",
    "u8",
    "u32",
    "u32",
    "u64",
    "u64",
    "f16",
    "f32",
    "f64",
    "bf16",
    "f8e4m3",
    "f8e5m2",
)
_NCCL_ARGUMENTS = "(ncclDevKernelArgsStorage<4096ul>)"
_TORCH_TYPES = (
    "Char",
    "Byte",
    "Int",
    "UInt32",
    "Long",
    "UInt64",
    "Half",
    "Float",
    "Double",
    "BFloat16",
    "Float8_e4m3fn",
    "Float8_e5m2",
)
_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_KIND_NAMES = (
    "allreduce",
    "_allgather_base",
    "_reduce_scatter_base",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
)


@dataclass(frozen=True, slots=True)
class Described:
    """Work as a trace shows it. `arguments` holds JSON members that are the same for each launch,
    starting with a comma."""

    name: str
    category: str
    arguments: str
    size_bytes: int = 0


def describe(signature: Signature, multiprocessors: int) -> Described:
    """How a trace shows a signature. Never fails: a malformed signature is named as such."""
    try:
        kind, fields = msgpack.unpackb(signature.packed, strict_map_key=False)
        if kind == SignatureKind.KERNEL:
            return _kernel(fields, signature, multiprocessors)
        if kind == SignatureKind.GEMM:
            return Described(_gemm_name(fields), "kernel", "")
        if kind == SignatureKind.CUDNN:
            return Described(_cudnn_name(fields[0]), "kernel", "")
        if kind == SignatureKind.MEMORY:
            return _memory(fields)
        return Described(f"{fields[0]}({', '.join(map(str, fields[1]))}) {SIMULATED}", "kernel", "")
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException):
        return Described(f"unknown work {SIMULATED}", "kernel", "")


def geometry(signature: Signature) -> tuple[int, ...]:
    """What CUPTI says of work besides its name and times: of a kernel (registers per thread, static
    and dynamic shared memory, three sizes of the grid, three of the block), of a copy or fill
    (operation, bytes, from, to), numbers as in docs/wire-protocol.md. () of a library call, whose
    kernels are not known."""
    try:
        kind, fields = msgpack.unpackb(signature.packed, strict_map_key=False)
        if kind == SignatureKind.KERNEL:
            shared = signature.static_shared, int(fields[7])
            return signature.registers, *shared, *map(int, fields[1:7])
        if kind == SignatureKind.MEMORY:
            return tuple(map(int, fields[:4]))
    except (ValueError, TypeError, IndexError, msgpack.UnpackException):
        pass
    return ()


def communication(comm: LogComm, launch: Launch, description: str) -> tuple[str, str]:
    """(name, JSON members) of a launch of communication. `description` is PyTorch's description of
    it, "" without one."""
    if comm.kind in _NCCL:
        what = f"_Sum_{_NCCL_TYPES[comm.dtype]}" if comm.kind in _NCCL_REDUCES else ""
        algorithm = "TREE" if launch.algorithm == "tree" else "RING"
        name = f"ncclDevKernel_{_NCCL[comm.kind]}{what}_{algorithm}_LL{_NCCL_ARGUMENTS}"
    else:
        name = f"ncclDevKernel_SendRecv{_NCCL_ARGUMENTS}"
    if not description:
        item = _TYPE_BYTES[comm.dtype]
        own = {
            "Collective name": _KIND_NAMES[comm.kind],
            "In msg nelems": comm.send_bytes // item,
            "Out msg nelems": comm.recv_bytes // item,
            "Group size": comm.size,
            "dtype": _TORCH_TYPES[comm.dtype],
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": f"communicator {comm.comm}",
        }
        description = json.dumps(own)[1:-1]
    chosen = {
        "Algorithm": launch.algorithm,
        "Protocol": launch.protocol,
        "Channels": launch.channels,
        "Operations": comm.operations,
        "Operation": Collective.LABELS[comm.kind],
        "Communicator": comm.comm,
        "Rank in communicator": comm.rank,
        "Send bytes": comm.send_bytes,
        "Receive bytes": comm.recv_bytes,
    }
    grid = f', "grid": [{max(launch.channels, 1)}, 1, 1]'
    return name, f"{grid}, {description}, {json.dumps(chosen)[1:-1]}"


def _kernel(fields: list, signature: Signature, multiprocessors: int) -> Described:
    name, gx, gy, gz, bx, by, bz, shared, *_ = fields
    blocks, warps = gx * gy * gz, math.ceil(bx * by * bz / 32)
    arguments = {
        "registers per thread": signature.registers,
        "shared memory": shared + signature.static_shared,
        "blocks per SM": round(blocks / multiprocessors, 6),
        "warps per SM": round(blocks * warps / multiprocessors, 6),
        "grid": [gx, gy, gz],
        "block": [bx, by, bz],
    }
    return Described(demangle(name), "kernel", ", " + json.dumps(arguments)[1:-1])


def _gemm_name(fields: list) -> str:
    api, transa, transb, m, n, k, batch, atype, btype, ctype, *_ = fields
    types = [_GEMM_TYPES.get(code, f"type{code}") for code in (atype, btype, ctype)]
    text = types[0] if len(set(types)) == 1 else "/".join(types)
    batched = f" batch {batch}" if batch > 1 else ""
    call = "cublasLtMatmul" if api == 1 else "cublasGemm"
    return (
        f"{call} {text} {m}x{n}x{k} {_TRANSPOSED[transa]}{_TRANSPOSED[transb]}{batched} {SIMULATED}"
    )


def _cudnn_name(graph: Any) -> str:
    found = cudnn_graphs.operations(graph_forms.plain(graph))
    call = cudnn_graphs.as_attention(found)
    if call is not None:
        way = "backward" if call.backward else "forward"
        causal = " causal" if call.causal else ""
        sizes = "x".join(
            map(str, (call.batch, call.heads, call.queries, call.keys, call.head_size))
        )
        return f"cudnn sdpa {way} {call.element_bytes * 8} bit {sizes}{causal} {SIMULATED}"
    for operation in found:
        names = cudnn_graphs.CONVOLUTION_TENSORS.get(operation.kind)
        if names is not None and all(number in operation.tensors for number in names):
            image, weight, _ = (operation.tensors[number] for number in names)
            shapes = " by ".join("x".join(map(str, tensor.dims)) for tensor in (image, weight))
            element = _DNN_TYPES.get(image.kind, f"type{image.kind}")
            return f"cudnn {_CONVOLUTIONS[operation.kind]} {element} {shapes} {SIMULATED}"
    return f"cudnn graph of {len(found)} operations {SIMULATED}"


def _memory(fields: list) -> Described:
    op, size, source, target = fields
    if op == MemoryOp.SET:
        return Described(f"Memset ({_PLACES[target]})", "gpu_memset", f', "bytes": {size}', size)
    letters = ["D" if place == MemoryKind.DEVICE else "H" for place in (source, target)]
    kind = "PtoP" if MemoryKind.PEER in (source, target) else f"{letters[0]}to{letters[1]}"
    return Described(
        f"Memcpy {kind} ({_PLACES[source]} -> {_PLACES[target]})",
        "gpu_memcpy",
        f', "bytes": {size}',
        size,
    )
